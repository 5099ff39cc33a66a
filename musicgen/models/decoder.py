"""A model set up for decoding: quick steps, under linear attention rounded alike in any batch."""

from __future__ import annotations

import copy
import math
import types
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental import _config as symbolic_shapes
from torch.nn import functional as F

from musicgen.attention import AttentionKernel, LayerSpan, LinearAttention
from musicgen.errors import UserError
from musicgen.models.transformer import Layer, ModelState, Transformer
from musicgen.position import LayerCode, NoiseKey, RelativeCode
from musicgen.position.base import Projection

# CPU matrix products of fewer rows take another path, which rounds differently. Rows are filled up
# to a multiple of this, so that a sample is the same at any batch size.
_ROW_MULTIPLE = 4
# Compiling takes as long as it saves over this many layers' steps, on two cores.
_LAYER_STEPS_TO_COMPILE = 1 << 15


class Decoder:
    """Steps of a model, one token a row, after prefills by the model itself.

    On a CPU a copy of the model takes them, which shares its tensors but for the matrices: these
    are packed for few rows. Compiled, on a CPU, is one layer's step, which all layers then share;
    on a GPU the whole step becomes a CUDA graph. Only linear attention is compiled: the cache of
    softmax grows.

    Args:
        model: causal, in evaluation mode.
        compiled: true, false, or `auto`: a CUDA graph at once; on a CPU, compile after about
            as many tokens as it takes to pay for compiling.
        say: told, in one line, that compiling was asked for and is not possible.

    Raises:
        UserError: `compiled` is something else.
    """

    def __init__(
        self,
        model: Transformer,
        *,
        compiled: str | bool = "auto",
        say: Callable[[str], object] = warnings.warn,
    ) -> None:
        if compiled not in ("auto", True, False):
            raise UserError(f"compile={compiled}: give auto, true or false")
        self.model, self.say = model, say
        self.device = next(model.parameters()).device
        self.row_multiple = _ROW_MULTIPLE
        self._stepper = model
        layer = model.layers[0]
        assert isinstance(layer, Layer)
        if self.device.type == "cpu":
            self._stepper = _packed_copy(model)
            # A feature map is a product of as many rows as there are heads in all.
            self.row_multiple = _ROW_MULTIPLE // math.gcd(layer.num_heads, _ROW_MULTIPLE)
        self._compiled: Transformer | None = None  # on a CPU, once it is needed
        self._graph: _Graph | None = None  # on a GPU
        # Steps of a sequence before compiled ones; None: never.
        self._eager_steps: int | None = None
        grows = not isinstance(layer.kernel, LinearAttention)
        if compiled is True and grows:
            say(f"attention={layer.kernel.name} is not compiled for decoding: its state grows")
        elif compiled and not grows and self.device.type != "mps":
            wait = compiled == "auto" and self.device.type == "cpu"
            self._eager_steps = _LAYER_STEPS_TO_COMPILE // len(model.layers) if wait else 0
            if self.device.type == "cpu":
                # A single row would be compiled apart, and round differently.
                self.row_multiple = max(2, self.row_multiple)

    def filled(self, rows: Tensor) -> Tensor:
        """The rows, and the first again until they are as many as `step` wants."""
        missing = -len(rows) % self.row_multiple
        return torch.cat((rows, rows[:1].expand(missing))).to(self.device)

    def step(
        self,
        number: int,
        tokens: Tensor,
        state: ModelState,
        noise: NoiseKey,
        times: Tensor | None = None,
    ) -> tuple[Tensor, ModelState]:
        """One more token in each row.

        Args:
            number: of the step since the prefill.
            tokens: [B] ids, filled.
            state: what the step before returned, which may be overwritten; or the prefill's.
            noise: the key of the prefill.
            times: [B] musical time, filled, for a model that reads it.

        Returns:
            Logits [B, V] of the tokens after these, and the state.
        """
        if self._eager_steps is not None and number >= self._eager_steps:
            try:
                return self._compiled_step(tokens, state, noise, times)
            except Exception as error:  # whatever a compiler may raise
                self._eager_steps = None
                reason = " ".join((str(error).splitlines() or [""])[0].split())
                self.say(f"decoding runs uncompiled: {type(error).__name__}: {reason}")
        return _step(self._stepper, tokens, state, noise, times)

    def _compiled_step(
        self, tokens: Tensor, state: ModelState, noise: NoiseKey, times: Tensor | None
    ) -> tuple[Tensor, ModelState]:
        if self.device.type == "cpu":
            self._compiled = self._compiled or _compiled_copy(self._stepper)
            # Sizes that happen to be equal need not stay so.
            with symbolic_shapes.patch(use_duck_shape=False):  # type: ignore[attr-defined]
                return _step(self._compiled, tokens, state, noise, times)
        graph = self._graph
        if graph is None or graph.noise != noise or len(graph.tokens) != len(tokens):
            self._graph = graph = _Graph(self.model, tokens, state, noise, times)
        return graph(tokens, state, times)


def _step(
    model: Transformer,
    tokens: Tensor,
    state: ModelState,
    noise: NoiseKey,
    times: Tensor | None,
) -> tuple[Tensor, ModelState]:
    rows = len(tokens)
    fill = torch.arange(rows + -rows % _ROW_MULTIPLE, device=tokens.device) % rows
    positions = None
    if times is not None:
        positions = torch.stack((state.length, times), dim=-1)[fill, None]
    state = replace(state, length=state.length[fill])
    logits, state = model(
        tokens[fill, None], positions=positions, noise=noise, state=state, return_state=True
    )
    return logits[:rows, -1], replace(state, length=state.length[:rows])


class _Graph:
    """One step as a CUDA graph, over buffers that hold its tokens, state and logits.

    Raises:
        RuntimeError: the step waits for the GPU, which a graph cannot hold.
    """

    def __init__(
        self,
        model: Transformer,
        tokens: Tensor,
        state: ModelState,
        noise: NoiseKey,
        times: Tensor | None,
    ) -> None:
        self.tokens, self.noise = tokens.clone(), noise
        self.times = None if times is None else times.clone()
        self.state = state.select(torch.arange(len(tokens), device=tokens.device))
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            with torch.cuda.stream(stream):
                for _ in range(3):  # libraries set themselves up in the first
                    _step(model, self.tokens, self.state, noise, self.times)
        finally:
            torch.cuda.set_sync_debug_mode(before)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.logits, after = _step(model, self.tokens, self.state, noise, self.times)
            _copy(after, self.state)

    def __call__(
        self, tokens: Tensor, state: ModelState, times: Tensor | None
    ) -> tuple[Tensor, ModelState]:
        if state is not self.state:
            _copy(state, self.state)
        self.tokens.copy_(tokens)
        if self.times is not None and times is not None:
            self.times.copy_(times)
        self.graph.replay()
        return self.logits, self.state


def _copy(source: ModelState, target: ModelState) -> None:
    """Between states of linear attention, of the same rows."""
    target.length.copy_(source.length)
    for old, new in zip(target.layers, source.layers, strict=True):
        for a, b in zip(old, new, strict=True):
            a.copy_(b)


class _PackedLinear(nn.Module):
    """A linear layer with its matrix packed by oneDNN: half the time of MKL's at four rows.

    An ordinary one where torch is built without oneDNN.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.bias = linear.bias
        weight = linear.weight.detach()
        if torch.backends.mkldnn.is_available() and weight.dtype == torch.float32:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight, _ROW_MULTIPLE)
        self.register_buffer("weight", weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.musicgen.packed_linear(x, self.weight, self.bias)
        return out


# An operator of our own, as inductor takes packed matrices only if they are constants.
_library = torch.library.Library("musicgen", "FRAGMENT")
_library.define("packed_linear(Tensor x, Tensor weight, Tensor bias) -> Tensor")


@torch.library.impl(_library, "packed_linear", "CompositeExplicitAutograd")
def _packed_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if weight.is_mkldnn:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return out
    return F.linear(x, weight, bias)


@torch.library.register_fake("musicgen::packed_linear", lib=_library)
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], len(bias))


class _FilledKernel(AttentionKernel):
    """Steps of filled rows, with a state of those alone that are wanted: it is what costs."""

    def __init__(self, kernel: AttentionKernel) -> None:
        super().__init__(kernel.encoded_dim, kernel.logit_scale, kernel.num_heads)
        self.kernel = kernel

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        raise AssertionError("for steps only")

    def step(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        code: LayerCode,
        state: Any,
        *,
        span: LayerSpan | None = None,
    ) -> tuple[Tensor, Any]:
        rows = len(state.k)
        fill = torch.arange(len(q), device=q.device) % rows
        if isinstance(code, RelativeCode):  # no product of its own that rounds
            filled: LayerCode = code.first(rows)
        else:
            filled = _FilledCode(code, fill, rows)
        limits = {} if span is None else {"span": replace(span, positions=span.positions[:rows])}
        out, state = self.kernel.step(q[:rows], k[:rows], v[:rows], filled, state, **limits)
        return out[fill], state


class _FilledCode(LayerCode):
    """The code of filled rows, for what the first of them hold."""

    def __init__(self, code: LayerCode, fill: Tensor, rows: int) -> None:
        self.code, self.fill, self.rows = code, fill, rows
        self.keeps_sign, self.log_decay = code.keeps_sign, code.log_decay

    def encode(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q, k = self.code.encode(q[self.fill], k[self.fill])
        return q[: self.rows], k[: self.rows]

    def project(self, q: Tensor, k: Tensor, omega: Tensor) -> tuple[Projection, Projection]:
        of_q, of_k = (
            Projection(*(x[: self.rows] for x in projection))
            for projection in self.code.project(q[self.fill], k[self.fill], omega)
        )
        return of_q, of_k


def _packed_copy(model: Transformer) -> Transformer:
    packed = _sharing_copy(model)
    for module in list(packed.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, _PackedLinear(child))
    for layer in packed.layers:
        assert isinstance(layer, Layer)
        layer.kernel = _FilledKernel(layer.kernel)
    return packed


def _compiled_copy(model: Transformer) -> Transformer:
    """The model with its layers compiled, which happens at the first call, once for all."""
    compiled = _sharing_copy(model)
    # torch keeps what it compiled with the code, so each model gets its own.
    function = Layer.forward
    function = types.FunctionType(function.__code__.replace(), function.__globals__)
    function.__kwdefaults__ = Layer.forward.__kwdefaults__
    forward = torch.compile(
        function,
        fullgraph=True,
        dynamic=True,
        # Nothing about a layer changes between calls, and checking it takes a third of a step.
        options={"guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe},
    )
    for layer in compiled.layers:
        layer.forward = types.MethodType(forward, layer)
    return compiled


def _sharing_copy(model: Transformer) -> Transformer:
    """The modules anew, with the same tensors."""
    tensors = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
