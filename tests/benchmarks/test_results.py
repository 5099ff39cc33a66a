"""Intervals of stored results."""

import math

import pytest
from scipy.stats import t

from benchmarks import measure
from musicgen.files import read_csv


def test_intervals_of_small_models_are_those_of_their_stored_means():
    for row in read_csv(measure.RESULTS / "spe2021_small/position_loss.csv"):
        n, mean, std = (float(row[name]) for name in ("n", "mean", "std"))
        low, high = t.interval(0.95, n - 1, mean, std / math.sqrt(n))
        assert (float(row["low"]), float(row["high"])) == pytest.approx((low, high), rel=1e-9)
