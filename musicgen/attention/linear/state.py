"""The state of causal linear attention, and the inputs of its backends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

RescalePoints = Mapping[int, Tensor]
"""For some tokens n, a factor [B, H, E|1] on the sums over all tokens before n.

It contains the decay of token n, as the two may exceed fp32 separately: a factor e^90, a decay
e^−90.
"""

NormFeatures = tuple[Tensor, Tensor]
"""Features of queries and keys for the normaliser alone, [B, L, H, M] each."""


class LinearState(NamedTuple):
    """Sums over the tokens so far; their size does not depend on the number of tokens."""

    kv: Tensor  # [B, H, E, V]: Σ k vᵀ
    k: Tensor  # [B, H, M]: Σ k of the normaliser's features; M = E unless they are encoded
    log_scale: Tensor | None = None  # [B, H, E|1]: sums = stored sums · exp(log_scale); None: 0

    def scaled(self, factor: Tensor) -> LinearState:
        """Return the sums times a factor [B, H, E|1]."""
        return LinearState(self.kv * factor[..., None], self.k * factor, self.log_scale)


class ProductInputs(NamedTuple):
    """Inputs of a causal product; see `causal_linear_attention`."""

    q: Tensor  # [B, L, H, E]
    k: Tensor
    v: Tensor  # [B, L, H, V]
    norm: NormFeatures | None  # None: q and k
    log_decay: Tensor | None  # [H] or, by token, [B, L, H]
    state: LinearState | None
    dtype: torch.dtype  # of products within chunks, where the backend lets them be less precise
    eps: float
    return_state: bool
    rescale_points: RescalePoints


def segments(
    length: int, rescale_points: RescalePoints, max_length: int | None = None
) -> Iterator[slice]:
    """Yield slices of the tokens between rescale points, each of at most `max_length` tokens."""
    for start, stop in pairwise(sorted({0, *rescale_points, length})):
        step = max_length or stop - start
        for first in range(start, stop, step):
            yield slice(first, min(first + step, stop))


def normaliser(denominator: Tensor, eps: float) -> Tensor:
    """Return the divisor of attention: the sign of `denominator`, its magnitude plus `eps`.

    With `eps` 0, zeros become ones, so that a query without keys gets 0 instead of 0 / 0.
    """
    if eps:
        return torch.where(denominator < 0, denominator - eps, denominator + eps)
    return denominator + (denominator == 0)
