"""Decoding engines: one token per sequence and step."""

import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch

from musicgen.errors import ParameterError
from musicgen.generation.engines.onnx_runtime import NUM_STEPS_TO_EXPORT, OnnxEngine
from musicgen.generation.engines.torch_engines import CudaGraphEngine, Engine
from musicgen.models import Transformer
from musicgen.random import NoiseKey

ENGINES = ("auto", "eager", "onnx")
_PACKAGES = ("onnx", "onnxruntime", "onnxscript")  # of the extra `onnx`


def make_engine(
    model: Transformer,
    noise: NoiseKey,
    *,
    engine: str = "auto",
    warn: Callable[[str], object] = warnings.warn,
) -> Engine:
    """Return an engine for a model on its device.

    Args:
        model, noise: as for `Engine`.
        engine: `eager` is torch alone; `onnx` is ONNX Runtime, on a CPU, for a state of fixed
            size. `auto` uses ONNX Runtime where it can, after as many steps as repay making a graph
            if there is none yet, and a CUDA graph on an NVIDIA GPU.
        warn: called with one line if the engine that `auto` uses falls back to eager.

    Raises:
        UserError: `onnx` cannot decode this model.
    """
    layer: Any = model.layers[0]
    weight = next(model.parameters())
    supported = weight.device.type == "cpu" and weight.dtype == torch.float32
    if engine == "onnx":
        if not supported:
            raise ParameterError("engine", engine, "expected auto: it is for fp32 on a CPU")
        return OnnxEngine(model, noise)
    if engine == "eager" or not layer.attention.has_fixed_state:
        return Engine(model, noise)
    if weight.device.type == "cuda":
        return CudaGraphEngine(model, noise, warn)
    if supported and model.position.has_fixed_state and all(map(find_spec, _PACKAGES)):
        return OnnxEngine(model, noise, NUM_STEPS_TO_EXPORT, warn)
    return Engine(model, noise)
