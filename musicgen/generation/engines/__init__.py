"""Decoding engines: one token per row and step."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from musicgen.generation.engines.cuda_graph import CudaGraphEngine
from musicgen.generation.engines.eager import Engine
from musicgen.generation.engines.packed_cpu import LAYER_STEPS_TO_COMPILE, PackedCpuEngine
from musicgen.models import Transformer
from musicgen.models.layer import Layer
from musicgen.random import NoiseKey

__all__ = ["CudaGraphEngine", "Engine", "PackedCpuEngine", "make_engine"]


def make_engine(
    model: Transformer,
    noise: NoiseKey,
    *,
    compile: str | bool = "auto",  # noqa: A002, as in `MusicModel.generate`
    warn: Callable[[str], object] = warnings.warn,
) -> Engine:
    """Return the fastest engine for a model on its device.

    Only linear attention is compiled or recorded: the cache of softmax attention grows.

    Args:
        model, noise: as for `Engine`.
        compile: true, false, or `auto`: a CUDA graph from the first step on; on a CPU, compile
            after as many steps as repay the time it takes.
        warn: called with one line if a requested compilation is not possible.
    """
    layer = model.layers[0]
    assert isinstance(layer, Layer)
    fixed_state = layer.attention.has_fixed_state
    if compile is True and not fixed_state:
        warn(f"compile=True has no effect on {layer.attention.name} attention: its state grows")
    can_compile = bool(compile) and fixed_state
    device = next(model.parameters()).device.type
    if device == "cpu":
        wait = LAYER_STEPS_TO_COMPILE // len(model.layers) if compile == "auto" else 0
        return PackedCpuEngine(model, noise, wait if can_compile else None, warn)
    if device == "cuda" and can_compile:
        return CudaGraphEngine(model, noise, warn)
    return Engine(model, noise)
