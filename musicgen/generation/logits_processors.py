"""Logits processors: what a request asks of the logits, one after another.

A processor is a function of the tokens so far [B, L] and the logits [B, V], which returns the new
logits. Tokens that may not come have the logit −∞, and every sequence has one that may. Shorter
sequences begin with PAD. Logits are in fp64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Processor = Callable[[Tensor, Tensor], Tensor]


class LogitsProcessor:
    """A processor that remembers something of each sequence; others can be plain functions."""

    def start(self, batch: int) -> None:
        """Begin with a new batch of so many sequences."""

    def select(self, index: Tensor) -> None:
        """Keep only the sequences of the batch at `index`, as the others have ended."""

    def __call__(self, tokens: Tensor, logits: Tensor) -> Tensor:
        """Return the new logits. [B, L], [B, V] -> [B, V]"""
        raise NotImplementedError


def likeliest(tokens: Tensor, logits: Tensor) -> Tensor:
    """Leave only the likeliest token of each sequence."""
    best = logits.argmax(-1, keepdim=True)
    return torch.full_like(logits, -torch.inf).scatter(-1, best, 0.0)


@dataclass(frozen=True)
class Temperature:
    """Divide the logits."""

    temperature: float

    def __call__(self, tokens: Tensor, logits: Tensor) -> Tensor:
        return logits / self.temperature


@dataclass(frozen=True)
class TopK:
    """Keep the k most probable tokens."""

    k: int

    def __call__(self, tokens: Tensor, logits: Tensor) -> Tensor:
        if self.k >= logits.shape[-1]:
            return logits
        least = logits.topk(self.k).values[..., -1:]
        return logits.masked_fill(logits < least, -torch.inf)


@dataclass(frozen=True)
class TopP:
    """Keep the most probable tokens that together reach a probability (Holtzman et al. 2020)."""

    p: float

    def __call__(self, tokens: Tensor, logits: Tensor) -> Tensor:
        probabilities, order = logits.softmax(-1).sort(descending=True, stable=True)
        return _keep_first(logits, probabilities, order, self.p)


@dataclass(frozen=True)
class MinP:
    """Keep the tokens at least p times as probable as the likeliest (Nguyen et al. 2024)."""

    p: float

    def __call__(self, tokens: Tensor, logits: Tensor) -> Tensor:
        probabilities = logits.softmax(-1)
        least = self.p * probabilities.amax(-1, keepdim=True)
        return logits.masked_fill(probabilities < least, -torch.inf)


@dataclass(frozen=True)
class TypicalP:
    """Keep the tokens of average surprise that together reach a probability (Meister et al. 2023).

    Surprise is −log p, its average the entropy. The most probable token may be left out.
    """

    p: float

    def __call__(self, tokens: Tensor, logits: Tensor) -> Tensor:
        probabilities = logits.softmax(-1)
        surprise = -probabilities.log()
        entropy = torch.special.entr(probabilities).sum(-1, keepdim=True)
        order = (surprise - entropy).abs().argsort(stable=True)
        return _keep_first(logits, probabilities.gather(-1, order), order, self.p)


def _keep_first(logits: Tensor, probabilities: Tensor, order: Tensor, share: float) -> Tensor:
    """Keep the first tokens in an order that together reach a probability.

    Args:
        logits: [B, V]
        probabilities: of the tokens in their order. [B, V]
        order: ids. [B, V]
    """
    # The token that crosses the share stays: compare the probability before it.
    before = probabilities.cumsum(-1) - probabilities
    is_kept = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, before < share)
    return logits.masked_fill(~is_kept, -torch.inf)
