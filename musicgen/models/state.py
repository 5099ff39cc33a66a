"""The state of a causal model in decoding: passed in and out, never kept in a module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from musicgen.models.copy_head import CopyState


class LayerState(NamedTuple):
    """The state of a layer after some tokens."""

    attention: Any
    tokens: Tensor | None = None  # [B, width − 1, D], the last ones of a short convolution


def _select(state: Any, rows: Tensor) -> Any:
    """Return rows of a tensor, of a tuple of tensors, or of a state of attention; None: none."""
    if state is None or isinstance(state, Tensor):
        return None if state is None else state[rows]
    if isinstance(state, tuple):
        return type(state)(*(_select(part, rows) for part in state))
    return state.select(rows)


def _cat(states: Sequence[Any]) -> Any:
    """Concatenate the rows of what `_select` takes."""
    first = states[0]
    if first is None or isinstance(first, Tensor):
        return None if first is None else torch.cat(list(states))
    if isinstance(first, tuple):
        return type(first)(*map(_cat, zip(*states, strict=True)))
    return type(first).cat(list(states))


@dataclass(frozen=True)
class ModelState:
    """The state of a model after a sequence."""

    layers: list[LayerState]
    position: Any
    length: Tensor  # [B], number of tokens so far
    copied: CopyState | None = None  # of a copy head
    recent: Tensor | None = None  # [B, longest lag], see `with_recent`

    @property
    def lag_bias(self) -> Tensor:
        """See `CopyHead`, [B, max_lag + 1]; may be written."""
        assert self.copied is not None
        return self.copied.lag_bias

    def select(self, rows: Tensor) -> ModelState:
        """Return the states of the given rows, which may repeat."""
        layers = [_select(layer, rows) for layer in self.layers]
        copied, recent = _select(self.copied, rows), _select(self.recent, rows)
        return ModelState(layers, self.position, self.length[rows], copied, recent)

    @staticmethod
    def cat(states: list[ModelState]) -> ModelState:
        """Concatenate the rows of several states under one noise key."""
        layers, _, *others = zip(*(vars(state).values() for state in states), strict=True)
        joined = [_cat(layer) for layer in zip(*layers, strict=True)]
        return ModelState(joined, states[0].position, *map(_cat, others))

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
