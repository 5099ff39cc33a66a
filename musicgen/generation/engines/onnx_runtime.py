"""Decoding on a CPU with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from musicgen.export.cached import find_graph, make_graph, start_session
from musicgen.export.step import NEW, RINGS, SLOTS, RecurrentStep
from musicgen.generation.engines.torch_engines import Engine, first_line
from musicgen.models import CopySettings, ModelState, Transformer
from musicgen.random import NoiseKey

if TYPE_CHECKING:
    import onnxruntime

NUM_STEPS_TO_EXPORT = 1000  # which save about as long as making a graph takes
# Slots of a copy head's ring at first; twice as many whenever they are full, up to its window.
NUM_SLOTS = 256

Arrays = dict[str, NDArray[Any]]


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
        if copy_settings is not None:
            arrays["copy.lag_bias"][:] = copy_settings.lag_bias.numpy()
            arrays["copy.temperature"][:] = copy_settings.temperature.numpy()
        for ring, source in self._rings:
            ring[self._sequences, arrays["length"] % ring.shape[1]] = arrays[source]
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
