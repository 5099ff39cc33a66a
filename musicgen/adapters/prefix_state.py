"""Prefix states: the learned state in which linear attention begins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from musicgen.adapters.base import Adapter
from musicgen.attention import LinearAttention, LinearState
from musicgen.attention.linear.initial import InitialState
from musicgen.errors import ParameterError
from musicgen.models import Transformer
from musicgen.position import Site


class PrefixState(Adapter):
    """Learn the state of every layer in which sequences begin, as if music stood before them.

    Positions do not change: the first token is at 0. MIDI-RWKV (2025) tunes the state of another
    linear model. With decay, it fades in the heads that forget.

    Args:
        weight: of the state at first, in tokens: that many average tokens of the data. A light
            state hardly matters beside a window of tokens, and learns slowly.
    """

    name = "prefix_state"
    marker = ".initial_state."

    def __init__(self, weight: float = 16.0) -> None:
        self.weight = weight

    def attach(self, model: Transformer) -> None:
        model.requires_grad_(False)
        if not model.causal:
            expected = "expected a causal model, as only those have a state; use lora"
            raise ParameterError("adapter", PrefixState.name, expected)
        device = model.head.weight.device
        tokens = torch.zeros(1, 1, dtype=torch.long, device=device)
        positions = tokens[..., None].expand(1, 1, model.num_position_columns)
        states = _states(model, tokens, positions)
        for attention, state in zip(_attentions(model), states, strict=True):
            by_feature = attention.site != Site.FEATURE
            attention.initial_state = InitialState(state, by_feature=by_feature)

    def initialise(self, model: Transformer, tokens: Tensor, positions: Tensor) -> None:
        """Begin with the mean state after windows of the data: [N, L] ids, [N, L, P]."""
        modules = [attention.initial_state for attention in _attentions(model)]
        states = _states(model, tokens, positions)
        for attention, module, state in zip(_attentions(model), modules, states, strict=True):
            assert module is not None
            module.initialise(state, tokens.shape[1] / self.weight)
            attention.initial_state = module


def _attentions(model: Transformer) -> Iterator[LinearAttention]:
    for layer in list[Any](model.layers):
        if not isinstance(attention := layer.attention, LinearAttention):
            expected = f"expected a model with linear attention, not {attention.name}; use lora"
            raise ParameterError("adapter", PrefixState.name, expected)
        yield attention


@torch.no_grad()
def _states(model: Transformer, tokens: Tensor, positions: Tensor) -> list[LinearState]:
    """Return each layer's state after the tokens, from an empty one, which the model keeps."""
    found: list[LinearState] = []
    for attention in _attentions(model):
        attention.initial_state = None
    hooks = [
        attention.register_forward_hook(lambda _module, _inputs, output: found.append(output[1]))
        for attention in _attentions(model)
    ]
    training = model.training
    try:
        model.eval().hidden(tokens, positions=positions, return_state=True)
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return found
