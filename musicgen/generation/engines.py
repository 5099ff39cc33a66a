"""Decoding engines: one token per sequence and step, with torch, a CUDA graph or ONNX Runtime."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from musicgen.errors import ParameterError
from musicgen.export.cached import find_graph, make_graph, start_session
from musicgen.export.step import NEW, RINGS, SLOTS, RecurrentStep
from musicgen.models import CopySettings, ModelState, Transformer
from musicgen.random import NoiseKey

if TYPE_CHECKING:
    import onnxruntime

ENGINES = ("auto", "eager", "onnx")
_PACKAGES = ("onnx", "onnxruntime", "onnxscript")  # of the extra `onnx`
NUM_STEPS_TO_EXPORT = 1000  # which save about as long as making a graph takes
# Slots of a copy head's ring at first; twice as many whenever they are full, up to its window.
NUM_SLOTS = 256

Arrays = dict[str, NDArray[Any]]


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


class Engine:
    """Decodes with a model: a prefill in one parallel pass, then one token per sequence and step.

    Steps run uncompiled, on any device, with any attention; other engines override `step`.

    Args:
        model: causal, in evaluation mode.
        noise: key of the positional encoding's random draws, for all sequences and steps.
    """

    def __init__(self, model: Transformer, noise: NoiseKey) -> None:
        self.model, self.noise = model, noise
        self.device = next(model.parameters()).device

    def prefill(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor, ModelState]:
        """Return the logits [B, V] after prompts [B, L] at positions [B, L, P], and the state."""
        logits, state = self.model.forward_with_state(
            tokens, positions=positions, noise=self.noise, last=True
        )
        return logits[:, 0], state

    def step(
        self,
        tokens: Tensor,
        positions: Tensor,
        state: Any,
        copy_settings: CopySettings | None = None,
    ) -> tuple[Tensor, Any]:
        """Return the logits [B, V] after tokens [B] at positions [B, P], and the state.

        The engine may overwrite the state that it receives, from `prefill` or from the last step.
        What it returns may be of its own kind, with the method `select` of a `ModelState`.
        """
        logits, state = self.model.forward_with_state(
            tokens[:, None],
            positions=positions[:, None],
            noise=self.noise,
            state=state,
            copy_settings=copy_settings,
            overwrite=True,
        )
        return logits[:, 0], state


def first_line(error: Exception) -> str:
    """Return an exception's type and the first line of its message."""
    line = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {' '.join(line.split())}"


class CudaGraphEngine(Engine):
    """Records one step as a CUDA graph, and replays it.

    Args:
        model, noise: as for `Engine`; linear attention only, as the state must not grow.
        warn: called with one line where recording fails; decoding then runs without a graph.
    """

    def __init__(self, model: Transformer, noise: NoiseKey, warn: Callable[[str], object]) -> None:
        super().__init__(model, noise)
        self.warn = warn
        self._graph: _Graph | None = None
        self._failed = False

    def step(
        self,
        tokens: Tensor,
        positions: Tensor,
        state: Any,
        copy_settings: CopySettings | None = None,
    ) -> tuple[Tensor, Any]:
        if not self._failed:
            try:
                # Recording takes several steps: a graph also serves down to half of its batch.
                size = 0 if self._graph is None else len(self._graph.tokens)
                if self._graph is None or not size // 2 < len(tokens) <= size:
                    self._graph = _Graph(super().step, tokens, positions, state, copy_settings)
                return self._graph(tokens, positions, state, copy_settings)
            except Exception as error:  # torch raises exceptions of several types
                self._failed = True
                self.warn(f"decoding runs without a CUDA graph: {first_line(error)}")
        return super().step(tokens, positions, state, copy_settings)


class _Graph:
    """One step as a CUDA graph over buffers that hold its inputs, its state and its logits.

    A step that waits for the GPU cannot be recorded and raises `RuntimeError`.
    """

    def __init__(
        self,
        step: Callable[..., tuple[Tensor, ModelState]],
        tokens: Tensor,
        positions: Tensor,
        state: ModelState,
        copy_settings: CopySettings | None,
    ) -> None:
        self.tokens, self.positions = tokens.clone(), positions.clone()
        self.copy_settings = copy_settings
        if copy_settings is not None:
            self.copy_settings = CopySettings(*(part.clone() for part in copy_settings))
        self.state = state.select(torch.arange(len(tokens), device=tokens.device))
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            with torch.cuda.stream(stream):
                for _ in range(3):  # libraries initialise themselves in the first
                    step(self.tokens, self.positions, self.state, self.copy_settings)
        finally:
            torch.cuda.set_sync_debug_mode(before)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.logits, after = step(self.tokens, self.positions, self.state, self.copy_settings)
            _copy(after, self.state)

    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        state: ModelState,
        copy_settings: CopySettings | None,
    ) -> tuple[Tensor, ModelState]:
        """Run the step; ignore further sequences of the returned state."""
        batch = len(tokens)
        if state is not self.state:
            _copy(state, self.state)
        self.tokens[:batch].copy_(tokens)
        self.positions[:batch].copy_(positions)
        if self.copy_settings is not None and copy_settings is not None:
            for buffer, new in zip(self.copy_settings, copy_settings, strict=True):
                buffer[:batch].copy_(new)
        self.graph.replay()
        return self.logits[:batch], self.state


def _copy(source: ModelState, target: ModelState) -> None:
    """Copy a state of linear attention to the first sequences of another."""
    batch = len(source.length)
    new = source.tensors()
    for name, old in target.tensors().items():
        old[:batch].copy_(new[name])


class BoundState:
    """The state of a batch, in the memory that a session reads and writes.

    What a step replaces is there twice: steps read one copy and write the other in turn.

    Args:
        arrays: those of `ModelState.tensors` and `RecurrentStep.settings`, by name, of the whole
            batch; rings may have fewer slots.
        empty: those of one sequence before its first token.
    """

    def __init__(
        self, session: onnxruntime.InferenceSession, arrays: Arrays, empty: Arrays
    ) -> None:
        self.session, self.empty, batch = session, empty, len(arrays["length"])
        length = int(arrays["length"].max())
        num_slots = max(NUM_SLOTS, 1 << length.bit_length())
        self.num_free = num_slots - length
        arrays = dict(arrays)
        for name in SLOTS.keys() & arrays.keys():
            arrays[name] = _with_slots(arrays[name], empty[name], SLOTS[name], num_slots)
        shapes = {
            each.name: (batch, *each.shape[1:])
            for each in (*session.get_inputs(), *session.get_outputs())
        }
        self._sequences, self._tokens = np.arange(batch), np.empty(batch, np.int64)
        self._settings: CopySettings | None = None  # those that the arrays have
        self._positions = np.empty(shapes["positions"], np.int64)
        self._logits = np.empty(shapes["logits"], np.float32)
        now = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        now |= {"tokens": self._tokens, "positions": self._positions, "logits": self._logits}
        then = now | {k: np.empty_like(x) for k, x in now.items() if NEW + k in shapes}
        self._rings = [
            (now[name].swapaxes(1, axis), source)  # [B, W, ...]
            for name, (source, axis) in RINGS.items()
            if name in now
        ]
        self._sides = [(now, self._bind(now, then)), (then, self._bind(then, now))]

    @property
    def arrays(self) -> Arrays:
        return self._sides[0][0]

    def _bind(self, now: Arrays, then: Arrays) -> onnxruntime.IOBinding:
        """Return a step from some arrays to others."""
        from onnxruntime import OrtValue

        binding = self.session.io_binding()
        for each in self.session.get_inputs():
            value = OrtValue.ortvalue_from_numpy(now[each.name])
            binding.bind_ortvalue_input(each.name, value)
        for each in self.session.get_outputs():
            value = OrtValue.ortvalue_from_numpy(then[each.name.removeprefix(NEW)])
            binding.bind_ortvalue_output(each.name, value)
        return binding

    def step(self, tokens: Tensor, positions: Tensor, copy_settings: CopySettings | None) -> Tensor:
        """Change the state to that after tokens [B] at positions [B, P]; return logits [B, V]."""
        self._tokens[:], self._positions[:] = tokens.numpy(), positions.numpy()
        arrays, binding = self._sides[0]
        if copy_settings is not None and copy_settings is not self._settings:
            self._settings = copy_settings
            arrays["copy.lag_bias"][:] = copy_settings.lag_bias.numpy()
            arrays["copy.temperature"][:] = copy_settings.temperature.numpy()
        if self._rings:
            slots = self._sequences, arrays["length"] % self._rings[0][0].shape[1]
            for ring, source in self._rings:
                ring[slots] = arrays[source]
        self.session.run_with_iobinding(binding)
        self._sides.reverse()
        self.num_free -= 1
        return torch.from_numpy(self._logits.copy())

    def select(self, index: Tensor) -> BoundState:
        """Return the states of the sequences at `index`, which may repeat."""
        at = index.numpy()
        arrays = {name: array[at] for name, array in self.arrays.items()}
        return BoundState(self.session, arrays, self.empty)


def _with_slots(ring: NDArray[Any], empty: NDArray[Any], axis: int, number: int) -> NDArray[Any]:
    """Return the rings of a batch with that many slots of an empty one, if it has as many."""
    found = np.repeat(empty.swapaxes(1, axis)[:, :number].swapaxes(1, axis), len(ring), axis=0)
    kept = ring.swapaxes(1, axis)[:, :number]
    found.swapaxes(1, axis)[:, : kept.shape[1]] = kept
    return found


class OnnxEngine(Engine):
    """Steps with a graph of the model, of the weights that the model has at the first of them.

    Args:
        model, noise: as for `Engine`; on the CPU, in fp32.
        num_eager_steps: steps without a graph before one is made, if there is none yet.
        warn: called with one line if a graph fails; decoding falls back to eager. None: raise.

    Raises:
        UserError: the model's state grows.
    """

    def __init__(
        self,
        model: Transformer,
        noise: NoiseKey,
        num_eager_steps: int = 0,
        warn: Callable[[str], object] | None = None,
    ) -> None:
        super().__init__(model, noise)
        self.graph_step = RecurrentStep(model, noise)
        self.num_eager_steps, self.warn = num_eager_steps, warn
        self._num_steps = 0
        self._session: onnxruntime.InferenceSession | None = None

    def step(
        self,
        tokens: Tensor,
        positions: Tensor,
        state: Any,
        copy_settings: CopySettings | None = None,
    ) -> tuple[Tensor, Any]:
        self._session = self._session or self._find_session()
        if self._session is None:
            return super().step(tokens, positions, state, copy_settings)
        if isinstance(state, ModelState):
            # Copies, because steps write into them.
            settings = {k: x.repeat(len(tokens), 1) for k, x in self.graph_step.settings.items()}
            arrays = {k: x.numpy() for k, x in (state.tensors() | settings).items()}
            empty = {k: x.numpy() for k, x in self.graph_step.template.tensors().items()}
            state = BoundState(self._session, arrays, empty)
        if not state.num_free:  # with larger rings
            state = BoundState(self._session, state.arrays, state.empty)
        return state.step(tokens, positions, copy_settings), state

    def _find_session(self) -> onnxruntime.InferenceSession | None:
        self._num_steps += 1
        try:
            if self._num_steps == 1 and (found := find_graph(self.graph_step)) is not None:
                return found[1]
            if self._num_steps == self.num_eager_steps + 1:
                return start_session(self.graph_step, make_graph(self.graph_step))
        except Exception as error:  # exporters and runtimes raise many types
            if self.warn is None:
                raise
            self.warn(f"decoding runs without ONNX Runtime: {first_line(error)}")
        return None
