"""Summary of a measure over many pieces."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
"""Level of a summary's interval."""


@dataclass(frozen=True)
class Summary:
    """One measure over many pieces; statistics without enough values are NaN."""

    n: int  # values, without NaN
    skipped: int  # NaN values, such as those of empty tracks
    mean: float
    std: float  # of the sample: divisor n - 1
    low: float  # bootstrap interval of the mean
    high: float

    @classmethod
    def of(cls, values: Iterable[float], *, seed: int = 0) -> Summary:
        """Summarise `values`; NaN values are skipped and counted.

        The interval is the percentile bootstrap (Efron & Tibshirani 1993, section 13.3). The same
        values and seed give the same interval.
        """
        array = np.fromiter(values, dtype=float)
        valid = array[~np.isnan(array)]
        n, skipped, mean = len(valid), len(array) - len(valid), mean_of_valid(array)
        if n < 2:
            return cls(n, skipped, mean, np.nan, np.nan, np.nan)
        from scipy.stats import bootstrap  # takes most of a second to import

        # The percentile method is defined on equal values; BCa divides by zero.
        low, high = bootstrap(
            (valid,),
            np.mean,
            confidence_level=CONFIDENCE,
            method="percentile",
            batch=1000,
            rng=np.random.default_rng(seed),
        ).confidence_interval
        return cls(n, skipped, mean, float(valid.std(ddof=1)), float(low), float(high))


def mean_of_valid(values: np.ndarray) -> float:
    """Return the mean of the values that are not NaN; NaN without any."""
    valid = values[~np.isnan(values)]
    return float(valid.mean()) if len(valid) else np.nan
