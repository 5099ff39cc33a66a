"""The state of a causal model in decoding. It is passed in and returned, not kept in a module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from musicgen.models.copy_attention import CopyState
from musicgen.random import NoiseKey

LayerState = tuple[Any, Tensor | None]
"""The state of attention, and the last inputs of the short convolution [B, width − 1, D]."""


@dataclass(frozen=True)
class ModelState:
    """The state of a model after a sequence."""

    layers: list[LayerState]
    position: Any
    length: Tensor  # [B], number of tokens so far
    copied: CopyState | None = None  # state of the copy head
    recent: Tensor | None = None  # [B, longest lag], see `with_recent`
    key: NoiseKey | None = None  # of the noise; None: unknown, only the noise itself was given

    def select(self, indices: Tensor) -> ModelState:
        """Return the states of the sequences at these indices [N], which may repeat."""

        def select(part: Any) -> Any:
            return part[indices] if isinstance(part, Tensor) else part.select(indices)

        return _mapped(select, self)

    @staticmethod
    def cat(states: list[ModelState]) -> ModelState:
        """Return one state with the sequences of several states, which have the same noise key."""

        def cat(*parts: Any) -> Any:
            return torch.cat(parts) if isinstance(parts[0], Tensor) else parts[0].cat([*parts])

        return _mapped(cat, *states)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of a state of linear attention by name; their first axis is B."""
        named = {"length": self.length, "recent": self.recent}
        for i, (attention, tokens) in enumerate(self.layers):
            parts = {**attention._asdict(), "tokens": tokens}
            named |= {f"layers.{i}.{name}": tensor for name, tensor in parts.items()}
        if self.copied is not None:
            named |= {f"copied.{name}": tensor for name, tensor in self.copied._asdict().items()}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def replaced(self, tensors: Mapping[str, Tensor]) -> ModelState:
        """Return the state with these tensors, named as in `tensors()`, in place of its own."""

        def part(state: Any, prefix: str) -> Any:
            return state._replace(**{name: tensors.get(prefix + name) for name in state._fields})

        layers = [
            (part(attention, f"layers.{i}."), tensors.get(f"layers.{i}.tokens"))
            for i, (attention, _) in enumerate(self.layers)
        ]
        copied = None if self.copied is None else part(self.copied, "copied.")
        length, recent = tensors["length"], tensors.get("recent")
        return replace(self, layers=layers, length=length, copied=copied, recent=recent)


def _mapped(function: Callable[..., Any], *states: ModelState) -> ModelState:
    """Return a state with a function applied to the tensors and softmax caches of several states.

    The state of the positional encoding and the key are taken from the first one.
    """
    parts = [(state.layers, state.length, state.copied, state.recent) for state in states]
    mapped = tree_map(lambda *each: None if each[0] is None else function(*each), *parts)
    layers, length, copied, recent = mapped
    return ModelState(layers, states[0].position, length, copied, recent, states[0].key)
