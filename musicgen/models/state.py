"""The state of a causal model in decoding: passed in and out, never kept in a module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from musicgen.models.copy_state import CopyState


class LayerState(NamedTuple):
    """The state of a layer after some tokens."""

    attention: Any
    tokens: Tensor | None = None  # [B, width − 1, D], the last ones of a short convolution


@dataclass(frozen=True)
class ModelState:
    """The state of a model after a sequence."""

    layers: list[LayerState]
    position: Any
    length: Tensor  # [B], number of tokens so far
    copied: CopyState | None = None  # of a copy head
    recent: Tensor | None = None  # [B, longest lag], see `with_recent`

    def select(self, rows: Tensor) -> ModelState:
        """Return the states of the given rows, which may repeat."""

        def select(part: Any) -> Any:
            return part[rows] if isinstance(part, Tensor) else part.select(rows)

        return _mapped(select, self)

    @staticmethod
    def cat(states: list[ModelState]) -> ModelState:
        """Concatenate the rows of several states under one noise key."""

        def cat(*parts: Any) -> Any:
            return torch.cat(parts) if isinstance(parts[0], Tensor) else parts[0].cat([*parts])

        return _mapped(cat, *states)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of a state of linear attention by name; row b is sequence b."""
        named = {"length": self.length, "recent": self.recent}
        for i, (attention, tokens) in enumerate(self.layers):
            parts = {**attention._asdict(), "tokens": tokens}
            named |= {f"layers.{i}.{name}": tensor for name, tensor in parts.items()}
        if self.copied is not None:
            named |= {f"copied.{name}": tensor for name, tensor in self.copied._asdict().items()}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def replaced(self, tensors: Mapping[str, Tensor]) -> ModelState:
        """Return the state with other `tensors`."""

        def part(state: Any, prefix: str) -> Any:
            return state._replace(**{name: tensors.get(prefix + name) for name in state._fields})

        layers = [
            LayerState(part(layer.attention, f"layers.{i}."), tensors.get(f"layers.{i}.tokens"))
            for i, layer in enumerate(self.layers)
        ]
        copied = None if self.copied is None else part(self.copied, "copied.")
        length, recent = tensors["length"], tensors.get("recent")
        return replace(self, layers=layers, length=length, copied=copied, recent=recent)


def _mapped(function: Callable[..., Any], *states: ModelState) -> ModelState:
    """Return what a function makes of the tensors, and caches of softmax attention, of states."""
    parts = [(state.layers, state.length, state.copied, state.recent) for state in states]
    layers, *others = tree_map(lambda *each: None if each[0] is None else function(*each), *parts)
    return ModelState(layers, states[0].position, *others)
