"""Translation invariance T and monotonicity M of attention, and the half width of kernels.

T and M are defined by Wang et al. (2021). They are measured by identical-word probing as in Liutkus
et al. 2021, table 7: in a sequence that repeats one token, attention depends only on positions. The
published values use weights before normalisation. Here the weights of a query are divided by its
weight on its own token.
"""

from itertools import pairwise
from typing import Any

import numpy as np

from musicgen.midi.score import FloatArray

# Differences below this share of the largest weight are rounding errors of fp64.
_ROUNDING = 1e-9


def by_offset(attention: FloatArray, queries: slice, max_offset: int) -> FloatArray:
    """Return the weights of some queries by offset, the distance from the query back to the key.

    Args:
        attention: [..., L, L], query and key.
        queries: Q of the queries.

    Returns:
        [..., Q, max_offset], NaN where there is no key.
    """
    m = np.arange(attention.shape[-1])[queries, None]
    n = m - np.arange(max_offset)
    return np.where(n >= 0, attention[..., m, n.clip(min=0)].astype(np.float64), np.nan)


def translation_invariance(weights: FloatArray, tolerance: FloatArray | float = 0) -> FloatArray:
    """Return T: the mean variance of weights at the same offset, over the variance of all weights.

    It is 0 if weights depend only on the offset. Variances are those of populations, and offsets
    are weighted by their number of weights. T is NaN if no weight differs from the mean by more
    than the tolerance.

    Args:
        weights: [..., Q, offsets], see `by_offset`.
        tolerance: [...].
    """
    masked = np.ma.masked_invalid(weights)
    within = (masked.var(-2) * masked.count(-2)).sum(-1)
    every = masked.reshape(*weights.shape[:-2], -1)
    largest = np.abs(every - every.mean(-1, keepdims=True)).max(-1)
    around = every.var(-1) * every.count(-1)
    nan = np.full(weights.shape[:-2], np.nan)
    return np.divide(within, around, out=nan, where=np.asarray(largest > tolerance))


def monotonicity(weights: FloatArray, tolerance: FloatArray | float = 0) -> FloatArray:
    """Return M: the share of pairs of keys of a query in which the farther key has more weight.

    It is 0 if weights never increase with the offset, and 1 if they always do. M is NaN if no query
    has two keys.

    Args:
        weights: [..., Q, offsets], see `by_offset`.
        tolerance: [...]. Weights that differ by no more than this are equal.
    """
    counts = (~np.isnan(weights)).sum(-1)
    pairs = (counts * (counts - 1) / 2).sum(-1)
    limit = np.asarray(tolerance)[..., None, None]
    inversions = np.zeros_like(pairs)
    for i in range(weights.shape[-1] - 1):  # comparisons with NaN are false
        rises = weights[..., i + 1 :] - weights[..., i, None] > limit
        inversions += rises.sum((-1, -2))
    return inversions / np.where(pairs > 0, pairs, np.nan)


def invariance_rows(attention: FloatArray, training_length: int) -> list[dict[str, Any]]:
    """Return the lowest T and the lowest M over heads, in the ranges of Liutkus et al., table 7.

    With the training length N, the ranges of queries are from 0 to N/2, from N/2 to N, and beyond.
    Keys are fewer than N/16, N/4 and N/2 tokens before them.

    Args:
        attention: weights of the heads [H, L, L].
    """
    half, length = training_length // 2, attention.shape[-1]
    starts = sorted({0, half, training_length, length} & set(range(length + 1)))
    rows = []
    for start, stop in pairwise(starts):
        for divisor in (16, 4, 2):
            max_offset = min(max(2, training_length // divisor), stop)
            weights = by_offset(attention, slice(start, stop), max_offset)
            tolerance = _ROUNDING * np.nanmax(np.abs(weights), (-1, -2))
            t = float(np.fmin.reduce(translation_invariance(weights, tolerance)))
            m = float(np.fmin.reduce(monotonicity(weights, tolerance)))
            ranges = {"queries": f"{start}–{stop - 1}", "offsets below": max_offset}
            rows.append({**ranges, "T": t, "M": m})
    return rows


def half_width(size: FloatArray) -> FloatArray:
    """Return the lag at which the size |p| of a kernel has fallen to half of |p(0)|: [...].

    It is interpolated linearly. It is infinite if there is no such lag, and NaN if p(0) = 0.

    Args:
        size: |p| at the lags 0, 1, …, [..., N].
    """
    half = size[..., :1] / 2
    fallen = size <= half
    after = np.where(fallen.any(-1), fallen.argmax(-1), 1)[..., None]
    here, before = (np.take_along_axis(size, after - i, -1) for i in (0, 1))
    share = np.divide(half - here, before - here, out=np.zeros(half.shape), where=before > here)
    width = np.where(fallen.any(-1), (after - share)[..., 0], np.inf)
    return np.where(half[..., 0] > 0, width, np.nan)
