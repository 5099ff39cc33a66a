"""The state of a causal model in decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from musicgen.models.layer import LayerState


@dataclass(frozen=True)
class ModelState:
    """The state of a causal model after a sequence: passed in and out, never kept in a module."""

    layers: list[LayerState]
    position: Any
    length: Tensor  # [B], number of tokens so far

    def select(self, rows: Tensor) -> ModelState:
        """Return the states of the given rows, which may repeat."""
        layers = [layer.select(rows) for layer in self.layers]
        return ModelState(layers, self.position, self.length[rows])

    @staticmethod
    def cat(states: list[ModelState]) -> ModelState:
        """Concatenate the rows of several states under one noise key."""
        columns = zip(*(state.layers for state in states), strict=True)
        layers = [LayerState.cat(list(column)) for column in columns]
        lengths = torch.cat([state.length for state in states])
        return ModelState(layers, states[0].position, lengths)
