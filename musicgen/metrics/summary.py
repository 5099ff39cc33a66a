"""The summary of a measure over pieces: mean, standard deviation and interval."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
"""Confidence level of intervals."""


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
    if not 0 < mean < 1:  # all values are equal
        return np.nan, np.nan
    logit = float(np.log(mean / (1 - mean)))
    low, high = mean_interval(logit, error / (mean * (1 - mean)), degrees)
    return float(1 / (1 + np.exp(-low))), float(1 / (1 + np.exp(-high)))


def mean_of_valid(values: np.ndarray) -> float:
    """Return the mean of the values that are not NaN; NaN if there are none."""
    valid = values[~np.isnan(values)]
    return float(valid.mean()) if len(valid) else np.nan
