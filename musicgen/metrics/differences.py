"""Differences of a measure between two sets of pieces, with intervals and p values.

Values of the same pieces are paired by name. Intervals and tests are of differences of means.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from musicgen.metrics.summary import Summary, mean_interval, mean_of_valid

Values = Mapping[str, float]
"""The value of a measure for each piece, by the name of the piece; NaN if undefined."""


class Difference(NamedTuple):
    """The mean of a measure in one set minus that in another; NaN with too few values."""

    n: int  # pairs; values of the smaller set if they are not paired
    mean: float
    low: float  # see `mean_interval`
    high: float
    p: float  # two-sided; NaN if they are not paired
    means: tuple[float, float]  # of both sets, over the values that are compared


def paired_difference(first: Values, second: Values, *, seed: int = 0) -> Difference:
    """Return the difference of the values of the pieces that both sets have.

    The p value is that of the permutation test: how often the mean difference is at least as far
    from 0 if the two values of each piece are swapped at random, 9,999 times. It is exact for up
    to 13 pieces.
    """
    names = sorted(x for x in first.keys() & second.keys() if not np.isnan(first[x] - second[x]))
    a, b = (np.array([values[name] for name in names]) for values in (first, second))
    valid, means = np.sort(a - b), (mean_of_valid(a), mean_of_valid(b))
    summary = Summary.of(valid)
    low, high, p = summary.low, summary.high, np.nan
    if summary.n > 1:
        from scipy.stats import permutation_test  # slow to import

        p = permutation_test((valid,), np.mean, permutation_type="samples", rng=seed).pvalue
        if not valid.any():
            low = high = 0.0  # no piece differs
    return Difference(summary.n, summary.mean, low, high, float(p), means)


def least_p(n: int) -> float:
    """Return the least possible p value of n pairs, which all differ in one direction.

    NaN of fewer than two pairs.
    """
    return 2.0 ** (1 - n) if n > 1 else np.nan


def unpaired_difference(first: Values, second: Values) -> Difference:
    """Return the difference of the means of two sets of different pieces (Welch 1947)."""
    sets = [np.fromiter(values.values(), float) for values in (first, second)]
    valid = [values[~np.isnan(values)] for values in sets]
    n, means = min(map(len, valid)), (mean_of_valid(valid[0]), mean_of_valid(valid[1]))
    mean = means[0] - means[1]
    low = high = np.nan
    if n > 1 and any(map(np.ptp, valid)):
        sizes = np.array([len(x) for x in valid])
        squares = np.array([x.var(ddof=1) for x in valid]) / sizes
        degrees = squares.sum() ** 2 / (squares**2 / (sizes - 1)).sum()
        low, high = mean_interval(mean, np.sqrt(squares.sum()), degrees)
    return Difference(n, mean, low, high, np.nan, means)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values corrected for their number (Holm 1979).

    If no difference is real, the probability that any corrected value is below .05 is at most .05.
    NaN values are not counted, and stay NaN.
    """
    order = sorted((p, i) for i, p in enumerate(p_values) if not np.isnan(p))
    corrected, largest = list(p_values), 0.0
    for rank, (p, i) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        corrected[i] = largest
    return corrected
