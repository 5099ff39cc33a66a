"""Translation invariance T and monotonicity M of attention, and the half width of kernels.

T and M are Wang et al.'s (2021), by identical-word probing as in Liutkus et al. 2021, table 7: in
attention between copies of one token, only positions tell queries and keys apart. The published
ones are of weights before rows are normalised; here rows are relative to the query's own weight.
"""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.floating]
# Differences below this share of the largest weight are rounding errors of fp64.
_ROUNDING = 1e-9


def by_offset(attention: FloatArray, queries: slice, max_offset: int) -> FloatArray:
    """Arrange the weights of some queries by how far back the key is.

    [..., L, L], query and key -> [..., Q, max_offset], NaN where there is no key.
    """
    m = np.arange(attention.shape[-1])[queries, None]
    n = m - np.arange(max_offset)
    return np.where(n >= 0, attention[..., m, n.clip(min=0)].astype(np.float64), np.nan)


def translation_invariance(weights: FloatArray, tolerance: FloatArray | float = 0) -> FloatArray:
    """Compute T: the mean variance of weights of one offset, over the variance of all weights.

    0 if weights depend on the offset alone. Variances are of populations, and offsets count by
    their number of weights. NaN if no weight deviates from the mean by more than the tolerance.

    Args:
        weights: see `by_offset`. [..., Q, offsets]
        tolerance: [...]
    """
    masked = np.ma.masked_invalid(weights)
    within = (masked.var(-2) * masked.count(-2)).sum(-1)
    every = masked.reshape(*weights.shape[:-2], -1)
    largest = np.abs(every - every.mean(-1, keepdims=True)).max(-1)
    around = every.var(-1) * every.count(-1)
    nan = np.full(weights.shape[:-2], np.nan)
    return np.divide(within, around, out=nan, where=np.asarray(largest > tolerance))


def monotonicity(weights: FloatArray, tolerance: FloatArray | float = 0) -> FloatArray:
    """Compute M: the share of pairs of keys of a query whose farther key has the larger weight.

    0 if weights never rise with the offset, 1 if they always do. NaN if no query has two keys.

    Args:
        weights: see `by_offset`. [..., Q, offsets]
        tolerance: weights that rise by no more are equal. [...]
    """
    counts = (~np.isnan(weights)).sum(-1)
    pairs = (counts * (counts - 1) / 2).sum(-1)
    limit = np.asarray(tolerance)[..., None, None]
    inversions = np.zeros(np.shape(pairs))
    for i in range(weights.shape[-1] - 1):  # comparisons with NaN are false
        rises = weights[..., i + 1 :] - weights[..., i, None] > limit
        inversions += rises.sum((-1, -2))
    return np.divide(inversions, pairs, out=np.full(np.shape(pairs), np.nan), where=pairs > 0)


def invariance_rows(attention: FloatArray, training_length: int) -> list[dict[str, Any]]:
    """Return the lowest T and M of the heads [H, L, L] in the ranges of Liutkus et al.'s table 7.

    With the training length N, queries are those before N/2, from there to N, and beyond; keys are
    fewer than N/16, N/4 and N/2 tokens before them.
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
    """Compute the lag at which the size |p| of a kernel has fallen to half of |p(0)|.

    It is interpolated linearly; infinite if there is none, NaN if p(0) = 0. [..., N] -> [...], of
    sizes at the lags 0, 1, …
    """
    half = size[..., :1] / 2
    fallen = size <= half
    after = np.where(fallen.any(-1), fallen.argmax(-1), 1)[..., None]
    here, before = (np.take_along_axis(size, after - i, -1) for i in (0, 1))
    share = np.divide(half - here, before - here, out=np.zeros(half.shape), where=before > here)
    width = np.where(fallen.any(-1), (after - share)[..., 0], np.inf)
    return np.where(half[..., 0] > 0, width, np.nan)
