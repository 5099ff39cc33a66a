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

    def select(self, rows: Tensor) -> LayerState:
        """Return the states of the given rows, which may repeat."""
        tokens = None if self.tokens is None else self.tokens[rows]
        return LayerState(self.attention.select(rows), tokens)

    @staticmethod
    def cat(states: Sequence[LayerState]) -> LayerState:
        """Concatenate the rows of several states."""
        attentions, tokens = zip(*states, strict=True)
        attention = type(attentions[0]).cat(list(attentions))
        return LayerState(attention, None if tokens[0] is None else torch.cat(tokens))


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
        layers = [layer.select(rows) for layer in self.layers]
        copied = None if self.copied is None else self.copied.select(rows)
        recent = None if self.recent is None else self.recent[rows]
        return ModelState(layers, self.position, self.length[rows], copied, recent)

    @staticmethod
    def cat(states: list[ModelState]) -> ModelState:
        """Concatenate the rows of several states under one noise key."""
        layers = [LayerState.cat(c) for c in zip(*(s.layers for s in states), strict=True)]
        copied = [state.copied for state in states if state.copied is not None]
        recent = [state.recent for state in states if state.recent is not None]
        return ModelState(
            layers,
            states[0].position,
            torch.cat([state.length for state in states]),
            CopyState.cat(copied) if copied else None,
            torch.cat(recent) if recent else None,
        )

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
