"""Decoding on a CPU: matrices packed for few rows, layers compiled.

The only file that uses private parts of torch: `torch.ops.mkldnn`, for packing. At the published
size four rows of a compiled step take 1.2 to 1.3 times as long without it
(benchmarks/results/decoding_engines.json). Without oneDNN, linear layers stay as they are.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from musicgen.generation.engines.eager import Engine, first_line
from musicgen.models import ModelState, Transformer
from musicgen.models.layer import Layer
from musicgen.random import NoiseKey

# Compiling takes about as long as it saves over this many steps of one layer, on two cores.
LAYER_STEPS_TO_COMPILE = 1 << 15
_PACKED_ROWS = 4  # oneDNN packs a matrix for products with about so many rows


class PackedCpuEngine(Engine):
    """Steps with a copy of the model that shares its tensors and has packed matrices.

    Args:
        model, noise: as for `Engine`.
        num_eager_steps: steps before compiling one layer's step, which all layers then share.
            Linear attention only, as the state must not grow; None never compiles.
        warn: called with one line where compiling fails; decoding then runs uncompiled.
    """

    def __init__(
        self,
        model: Transformer,
        noise: NoiseKey,
        num_eager_steps: int | None,
        warn: Callable[[str], object],
    ) -> None:
        super().__init__(model, noise)
        self.num_eager_steps, self.warn = num_eager_steps, warn
        self._num_steps = 0
        self._packed = self.step_model = pack_linear_layers(model)

    def step(
        self, tokens: Tensor, positions: Tensor, state: ModelState
    ) -> tuple[Tensor, ModelState]:
        self._num_steps += 1
        if self.num_eager_steps is not None and self._num_steps > self.num_eager_steps:
            try:
                if self.step_model is self._packed:
                    self.step_model = compile_layers(self._packed)
                return super().step(tokens, positions, state)
            except Exception as error:  # compilers raise exceptions of many types
                self.num_eager_steps, self.step_model = None, self._packed
                self.warn(f"decoding runs uncompiled: {first_line(error)}")
        return super().step(tokens, positions, state)


def compile_layers(model: Transformer) -> Transformer:
    """Return a copy of the model with compiled layers: compiled at the first step, once for all."""
    compiled = _copy_modules(model)
    forward = torch.compile(Layer.forward, fullgraph=True, dynamic=True)
    for layer in compiled.layers:
        layer.forward = types.MethodType(forward, layer)
    return compiled


def pack_linear_layers(model: Transformer) -> Transformer:
    """Return a copy of the model with packed linear layers."""
    packed = _copy_modules(model)
    if not torch.backends.mkldnn.is_available():
        return packed
    for module in list(packed.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear) and child.weight.dtype == torch.float32:
                setattr(module, name, _PackedLinear(child))
    return packed


def _copy_modules(model: Transformer) -> Transformer:
    """Copy a model's modules, but share its tensors."""
    tensors = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})


class _PackedLinear(nn.Module):
    """A linear layer with a packed matrix; a single row is faster with the plain one."""

    packed: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _PACKED_ROWS)
        self.register_buffer("packed", packed)

    def forward(self, x: Tensor) -> Tensor:
        if len(x) == 1:
            return F.linear(x, self.weight, self.bias)
        out: Tensor = torch.ops.musicgen.packed_linear(x, self.packed, self.bias)
        return out


# An operator of our own, as inductor takes packed matrices only if they are constants.
_library = torch.library.Library("musicgen", "FRAGMENT")
_library.define("packed_linear(Tensor x, Tensor packed, Tensor bias) -> Tensor")


@torch.library.impl(_library, "packed_linear", "CompositeExplicitAutograd")
def _packed_linear(x: Tensor, packed: Tensor, bias: Tensor) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return out


@torch.library.register_fake("musicgen::packed_linear", lib=_library)
def _(x: Tensor, packed: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], len(bias))
