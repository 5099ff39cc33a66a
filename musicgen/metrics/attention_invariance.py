"""Translation invariance T and monotonicity M of attention matrices.

They are Wang et al.'s (2021), by identical-word probing as in Liutkus et al. 2021, table 7: both
are read from attention between copies of one token, so that only positions tell queries and keys
apart, before its rows are normalised, so that a row's size plays no part.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.floating]


def by_offset(
    attention: FloatArray, queries: slice, max_offset: int, *, normalise_rows: bool = False
) -> FloatArray:
    """Arrange causal attention by how far back the key is.

    Args:
        attention: weights of query m and key n, m rows. [..., L, L]
        queries: the positions m to keep.
        max_offset: offsets m − n below it are kept.
        normalise_rows: divide each row by the sum over all its keys n ≤ m.

    Returns:
        [..., Q, max_offset]: the weight of the key τ before query m, NaN where there is none.
    """
    attention = np.tril(attention).astype(np.float64)
    if normalise_rows:
        attention = attention / attention.sum(-1, keepdims=True)
    m = np.arange(attention.shape[-1])[queries, None]
    n = m - np.arange(max_offset)
    return np.where(n >= 0, attention[..., m, n.clip(min=0)], np.nan)


def translation_invariance(weights: FloatArray) -> FloatArray:
    """Compute T: the mean variance of weights of one offset, over the variance of all weights.

    0 if weights depend on the offset alone. Variances are of populations, and offsets count by
    their number of weights. NaN if all weights are equal.

    Args:
        weights: see `by_offset`. [..., Q, T]

    Returns:
        [...].
    """
    present = ~np.isnan(weights)
    count = present.sum(-2)  # [..., T]
    filled = np.where(present, weights, 0)
    mean = filled.sum(-2) / np.maximum(count, 1)
    within = np.where(present, (weights - mean[..., None, :]) ** 2, 0).sum((-1, -2))
    total = filled.sum((-1, -2)) / np.maximum(count.sum(-1), 1)
    around = np.where(present, (weights - total[..., None, None]) ** 2, 0).sum((-1, -2))
    nan = np.full(np.shape(around), np.nan)
    return np.divide(within, around, out=nan, where=around > 0)


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
