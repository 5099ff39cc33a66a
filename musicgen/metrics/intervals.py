"""Summaries of a measure over pieces, and differences between two sets of pieces.

Intervals and tests are for means and differences of means. Values of the same piece are paired by
its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

CONFIDENCE = 0.95
"""Confidence level of intervals."""

Values = dict[str, float]
"""The values of a measure by the names of the pieces; NaN if undefined."""


@dataclass(frozen=True)
class Summary:
    """The summary of a measure over pieces; statistics that need more values are NaN."""

    n: int  # number of values, without NaN
    skipped: int  # number of NaN values, such as those of empty tracks
    mean: float
    std: float  # standard deviation with the divisor n - 1
    low: float  # lower end of the interval, see `mean_interval`
    high: float

    @classmethod
    def of(cls, values: Iterable[float], *, similarities: bool = False) -> Summary:
        """Return the summary of values; NaN values are skipped and counted.

        Args:
            similarities: the values are between 0 and 1, and so is the interval.
        """
        array = np.fromiter(values, dtype=float)
        valid = array[~np.isnan(array)]
        n, skipped, mean = len(valid), len(array) - len(valid), mean_of_valid(array)
        if n < 2:
            return cls(n, skipped, mean, np.nan, np.nan, np.nan)
        std = float(valid.std(ddof=1))
        interval = similarity_interval if similarities else mean_interval
        low, high = interval(mean, std / np.sqrt(n), n - 1)
        return cls(n, skipped, mean, std, low, high)


def mean_interval(mean: float, error: float, degrees: float) -> tuple[float, float]:
    """Return the ends of Student's t interval of a mean, or of a difference of means.

    It contains the true mean in 95% of the cases if values are normally distributed. For skewed
    values the share is lower: 90% for 10 exponential values, where bootstrap intervals have 85%.

    Args:
        mean: the mean.
        error: standard error of the mean. If it is 0, as all values are equal, the ends are NaN.
        degrees: degrees of freedom.
    """
    from scipy.special import stdtrit  # slow to import

    half = float(stdtrit(degrees, (1 + CONFIDENCE) / 2) * error) or np.nan
    return mean - half, mean + half


def similarity_interval(mean: float, error: float, degrees: float) -> tuple[float, float]:
    """Return the ends of the interval of a mean of values between 0 and 1; they are in 0–1, too.

    It is `mean_interval` on the scale of log(x / (1 − x)), with the standard error on this scale by
    the delta method (Cramér 1946). For the arguments, see `mean_interval`.
    """
    from scipy.special import expit  # slow to import

    if not 0 < mean < 1:  # all values are equal
        return np.nan, np.nan
    logit = float(np.log(mean / (1 - mean)))
    ends = expit(mean_interval(logit, error / (mean * (1 - mean)), degrees))
    return float(ends[0]), float(ends[1])


def mean_of_valid(values: ArrayLike) -> float:
    """Return the mean of the values that are not NaN; NaN if there are none."""
    array = np.asarray(values, float)
    valid = array[~np.isnan(array)]
    return float(valid.mean()) if len(valid) else np.nan


class Difference(NamedTuple):
    """The mean of a measure in a first set minus its mean in a second; NaN with too few values."""

    n: int  # number of pairs; if they are not paired, number of values of the smaller set
    mean: float
    low: float  # lower end of the interval, see `mean_interval`
    high: float
    p: float  # two-sided p value; NaN if they are not paired
    means: tuple[float, float]  # of both sets, over the values that are compared


def paired_difference(first: Values, second: Values, *, seed: int = 0) -> Difference:
    """Return the difference of the values of the pieces that both sets have.

    The p value is of a permutation test: the share of 9,999 random permutations, in which the two
    values of some pieces are swapped, whose mean difference is at least as far from 0. With up to
    13 pieces, all permutations are used, and the value is exact.

    Args:
        seed: seed of the permutations.
    """
    shared = first.keys() & second.keys()
    names = sorted(name for name in shared if not np.isnan(first[name] - second[name]))
    a, b = (np.array([values[name] for name in names]) for values in (first, second))
    differences, means = np.sort(a - b), (mean_of_valid(a), mean_of_valid(b))
    summary = Summary.of(differences)
    low, high, p = summary.low, summary.high, np.nan
    if summary.n > 1:
        from scipy.stats import permutation_test  # slow to import

        p = permutation_test((differences,), np.mean, permutation_type="samples", rng=seed).pvalue
        if not differences.any():
            low = high = 0.0  # no piece differs
    return Difference(summary.n, summary.mean, low, high, float(p), means)


def crossed_difference(
    first: Sequence[Values],
    second: Sequence[Values] = (),
    *,
    similarities: bool = False,
    seed: int = 0,
) -> Difference:
    """Return the mean of one group of runs minus that of another, over pieces and runs.

    The runs of a group differ in their seeds. Pieces and runs are both samples, and crossed: the
    variance of the mean is the sum of the variances over pieces and over runs, less that of their
    interaction, which both contain (Cameron, Gelbach and Miller 2011); it is at least the larger
    one. Interval and p value are those of Student's t with the degrees of freedom of Satterthwaite
    (1946). The variance over runs is pooled, so one of the groups may have a single run. For two
    single runs it is `paired_difference`, and for one run alone its mean over pieces.

    Args:
        first: values of each run of the first group; pieces that a run lacks are left out.
        second: those of the second group; empty: return the mean of the first.
        similarities: the mean of the first is between 0 and 1, and so is its interval.
        seed: seed of the permutations of single runs.
    """
    if len(first) == len(second) == 1:
        return paired_difference(first[0], second[0], seed=seed)
    runs = [*first, *second]
    names = sorted(
        name for name in runs[0] if not any(np.isnan(run.get(name, np.nan)) for run in runs)
    )
    groups = [
        np.array([[run[name] for name in names] for run in group]) for group in (first, second)
    ]
    groups = [group for group in groups if len(group)]  # [runs, pieces] each
    means = mean_of_valid(groups[0]), mean_of_valid(groups[-1])
    n, mean = len(names), means[0] - means[1] if second else means[0]
    if n < 2:
        return Difference(n, mean, np.nan, np.nan, np.nan, means)
    of_pieces = [group.mean(axis=0) for group in groups]
    over_pieces = float(np.var(of_pieces[0] - (of_pieces[1] if second else 0), ddof=1) / n)
    over_runs = interaction = 0.0
    if run_degrees := len(runs) - len(groups):
        from_piece = [group - group.mean(axis=0) for group in groups]
        of_runs = [group.mean(axis=1, keepdims=True) for group in from_piece]
        rest = sum(((x - y) ** 2).sum() for x, y in zip(from_piece, of_runs, strict=True))
        weight = sum(1 / len(group) for group in groups) / run_degrees
        over_runs = weight * float(sum((x**2).sum() for x in of_runs))
        interaction = weight * float(rest) / (n - 1) / n
    variance = max(over_pieces + over_runs - interaction, over_pieces, over_runs)
    if not variance:
        low = high = 0.0 if second and mean == 0 else np.nan  # no piece differs
        return Difference(n, mean, low, high, 1.0 if mean == 0 else np.nan, means)
    degrees = over_pieces**2 / (n - 1) + over_runs**2 / max(1, run_degrees)
    degrees = variance**2 / degrees
    from scipy.special import stdtr  # slow to import

    ends = similarity_interval if similarities else mean_interval
    low, high = ends(mean, np.sqrt(variance), degrees)
    p = 2 * stdtr(degrees, -abs(mean) / np.sqrt(variance))
    return Difference(n, mean, low, high, float(p), means)


def least_p(n: int) -> float:
    """Return the smallest possible p value of n pairs: all of them differ in the same direction.

    It is NaN for fewer than two pairs.
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
    """Return p values corrected for the number of comparisons (Holm 1979).

    If no difference is real, the probability that any corrected value is below .05 is at most .05.
    NaN values are not counted, and remain NaN.
    """
    order = sorted((p, i) for i, p in enumerate(p_values) if not np.isnan(p))
    corrected, largest = list(p_values), 0.0
    for rank, (p, i) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        corrected[i] = largest
    return corrected
