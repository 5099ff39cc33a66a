"""Decoding on a CPU with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from musicgen.export.cached import find_graph, make_graph, named_tensors
from musicgen.export.step import RecurrentStep
from musicgen.generation.engines.eager import Engine, first_line
from musicgen.models import ModelState, Transformer
from musicgen.random import NoiseKey

if TYPE_CHECKING:
    import onnxruntime

NUM_STEPS_TO_EXPORT = 1000
"""Steps that save about as long as making a graph takes."""

_ROWS_OF_RINGS = 4
"""Rows up to which a graph is faster with a copy head, whose rings it copies at each step."""


@dataclass(frozen=True)
class ArrayState:
    """A state as the arrays of `ModelState.tensors`, by name."""

    arrays: dict[str, NDArray[Any]]

    @property
    def lag_bias(self) -> Tensor:
        """As of `ModelState`."""
        return torch.from_numpy(self.arrays["copied.lag_bias"])

    def select(self, rows: Tensor) -> ArrayState:
        """Return the states of the given rows, which may repeat."""
        index = rows.numpy()
        return ArrayState({name: array[index] for name, array in self.arrays.items()})


class OnnxEngine(Engine):
    """Steps with a graph of the model, of the weights that the model has at the first of them.

    Args:
        model, noise: as for `Engine`; on the CPU, in fp32.
        num_eager_steps: steps without a graph before one is made, if there is none yet.
        warn: called with one line where making it fails; decoding then runs without. None: raise.

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

    def step(self, tokens: Tensor, positions: Tensor, state: Any) -> tuple[Tensor, Any]:
        if self.warn is not None and self._should_write_rings(state, len(tokens)):
            return super().step(tokens, positions, state)
        if self._session is None:
            self._session = self._find_session()
        if self._session is None:
            return super().step(tokens, positions, state)
        if isinstance(state, ModelState):
            state = ArrayState({name: x.numpy() for name, x in state.tensors().items()})
        fed = {"tokens": tokens.numpy(), "positions": positions.numpy(), **state.arrays}
        logits, *after = self._session.run(None, fed)
        return torch.from_numpy(logits), ArrayState(dict(zip(state.arrays, after, strict=True)))

    @staticmethod
    def _should_write_rings(state: Any, rows: int) -> bool:
        """Return whether torch is faster, as it writes a copy head's rings in place."""
        return isinstance(state, ModelState) and state.copied is not None and rows > _ROWS_OF_RINGS

    def _find_session(self) -> onnxruntime.InferenceSession | None:
        self._num_steps += 1
        path = find_graph(self.graph_step) if self._num_steps == 1 else None
        if path is not None:
            return start_session(self.graph_step, path.read_bytes())
        if self._num_steps != self.num_eager_steps + 1:
            return None
        try:
            return start_session(self.graph_step, make_graph(self.graph_step))
        except Exception as error:  # exporters raise exceptions of many types
            if self.warn is None:
                raise
            self.warn(f"decoding runs without ONNX Runtime: {first_line(error)}")
            return None


def start_session(step: RecurrentStep, graph: bytes) -> onnxruntime.InferenceSession:
    """Open a graph without weights with those of a step."""
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    tensors = named_tensors(step)  # not all of which a graph has
    names = [x.name for x in onnx.ModelProto.FromString(graph).graph.initializer]
    names = [name for name in names if name in tensors]
    arrays = [tensors[name].contiguous().numpy() for name in names]
    values = list(map(onnxruntime.OrtValue.ortvalue_from_numpy, arrays))
    options.add_external_initializers(names, values)
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
