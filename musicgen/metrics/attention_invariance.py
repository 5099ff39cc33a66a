"""Translation invariance T and monotonicity M of attention matrices.

They are Wang et al.'s (2021), by identical-word probing as in Liutkus et al. 2021, table 7: both
are read from attention between copies of one token, so that only positions tell queries and keys
apart, before its rows are normalised, so that a row's size plays no part.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.floating]
# Differences below this share of the largest weight are rounding errors of fp64.
_ROUNDING = 1e-9


def by_offset(attention: FloatArray, queries: slice, max_offset: int) -> FloatArray:
    """Arrange causal attention by how far back the key is.

    Args:
        attention: weights of query m and key n, m rows. [..., L, L]
        queries: the positions m to keep.
        max_offset: offsets m − n below it are kept.

    Returns:
        [..., Q, max_offset]: the weight of the key τ before query m, NaN where there is none.
    """
    m = np.arange(attention.shape[-1])[queries, None]
    n = m - np.arange(max_offset)
    return np.where(n >= 0, attention[..., m, n.clip(min=0)].astype(np.float64), np.nan)


def translation_invariance(weights: FloatArray, tolerance: FloatArray | float = 0) -> FloatArray:
    """Compute T: the mean variance of weights of one offset, over the variance of all weights.

    0 if weights depend on the offset alone. Variances are of populations, and offsets count by
    their number of weights. NaN if all weights are equal.

    Args:
        weights: see `by_offset`. [..., Q, T]
        tolerance: weights that deviate from their mean by no more are equal to it. [...]

    Returns:
        [...].
    """
    present = ~np.isnan(weights)
    count = present.sum(-2)  # [..., T]
    filled = np.where(present, weights, 0)
    mean = filled.sum(-2) / np.maximum(count, 1)
    within = np.where(present, (weights - mean[..., None, :]) ** 2, 0).sum((-1, -2))
    total = filled.sum((-1, -2)) / np.maximum(count.sum(-1), 1)
    squares = np.where(present, (weights - total[..., None, None]) ** 2, 0)
    around, largest = squares.sum((-1, -2)), squares.max((-1, -2))
    nan = np.full(np.shape(around), np.nan)
    return np.divide(within, around, out=nan, where=largest > np.square(tolerance))


def monotonicity(weights: FloatArray, tolerance: FloatArray | float = 0) -> FloatArray:
    """Compute M: the share of pairs of keys of a query whose farther key has the larger weight.

    0 if weights never rise with the offset, 1 if they always do.

    Args:
        weights: see `by_offset`. [..., Q, T]
        tolerance: weights that rise by no more are equal. [...]

    Returns:
        [...]: NaN if no query has two keys.
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
    """Return T and M of each head in the ranges of Liutkus et al.'s table 7.

    With the training length N, queries are those before N/2, from there to N, and beyond; keys are
    fewer than N/16, N/4 and N/2 tokens before them.

    Args:
        attention: matrices of heads, not normalised or normalised. [H, L, L]
        training_length: N.

    Returns:
        For each head and range: `head`, `first_query`, `last_query`, `offsets_below`, and both.
    """
    half, length = training_length // 2, attention.shape[-1]
    starts = sorted({0, half, training_length, length} & set(range(length + 1)))
    rows = []
    for start, stop in pairwise(starts):
        for divisor in (16, 4, 2):
            max_offset = min(max(2, training_length // divisor), stop)
            weights = by_offset(attention, slice(start, stop), max_offset)
            tolerance = _ROUNDING * np.nanmax(np.abs(weights), (-1, -2))
            t = translation_invariance(weights, tolerance)
            m = monotonicity(weights, tolerance)
            for head in range(len(attention)):
                ranges = {"first_query": start, "last_query": stop - 1, "offsets_below": max_offset}
                both = {"translation_invariance": float(t[head]), "monotonicity": float(m[head])}
                rows.append({"head": head, **ranges, **both})
    return rows
