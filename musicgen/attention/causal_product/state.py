"""What causal linear attention keeps of the tokens so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

# Where the sums change their scale: from token n on, those over the tokens before n count times
# [B, H, E|1].
Breaks = Mapping[int, Tensor]

# Features of queries and keys for the normaliser alone, [B, L, H, M] each.
Norm = tuple[Tensor, Tensor]


class LinearState(NamedTuple):
    """The sums over the tokens so far, of a size that does not depend on their number."""

    kv: Tensor  # [B, H, E, V]: Σ k vᵀ
    k: Tensor  # [B, H, M]: Σ k, of the features that the normaliser takes; M = E unless encoded
    log_scale: Tensor | None = None  # [B, H, E|1]: the sums are these times its exp; None: as is

    def select(self, rows: Tensor) -> LinearState:
        """The states of the given rows, which may repeat."""
        log_scale = None if self.log_scale is None else self.log_scale[rows]
        return LinearState(self.kv[rows], self.k[rows], log_scale)

    @staticmethod
    def cat(states: list[LinearState]) -> LinearState:
        """Rows of several states, one after the other."""
        kvs, ks, scales = zip(*states, strict=True)
        log_scale = None if scales[0] is None else torch.cat(scales)
        return LinearState(torch.cat(kvs), torch.cat(ks), log_scale)

    def scaled(self, factor: Tensor) -> LinearState:
        """The sums times a factor [B, H, E|1]."""
        return LinearState(self.kv * factor[..., None], self.k * factor, self.log_scale)


def spans(length: int, breaks: Breaks, longest: int | None = None) -> Iterator[slice]:
    """Stretches of tokens between breaks, cut up where longer than `longest`."""
    for start, stop in pairwise(sorted({0, *breaks, length})):
        step = longest or stop - start
        for first in range(start, stop, step):
            yield slice(first, min(first + step, stop))


def normaliser(denominator: Tensor, eps: float) -> Tensor:
    """What to divide by. With `eps` 0, a query that sees no key gets nothing instead of 0 / 0."""
    return denominator + (eps or (denominator == 0))
