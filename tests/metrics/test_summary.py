import math

import numpy as np
import pytest

from musicgen.metrics.summary import Summary


def test_summary_by_hand():
    summary = Summary.of([1.0, math.nan, 2.0, 3.0, 6.0, math.nan])
    assert (summary.n, summary.skipped, summary.mean) == (4, 2, 3.0)
    assert summary.std == pytest.approx(math.sqrt(14 / 3))


def test_interval_matches_the_normal_approximation():
    values = np.random.default_rng(0).normal(5, 2, 400)
    summary = Summary.of(values)
    half = 1.96 * values.std() / math.sqrt(400)
    assert summary.low == pytest.approx(values.mean() - half, abs=0.02)
    assert summary.high == pytest.approx(values.mean() + half, abs=0.02)


def test_few_or_equal_values():
    empty = Summary.of([math.nan])
    assert (empty.n, empty.skipped) == (0, 1)
    assert math.isnan(empty.mean)
    one = Summary.of([2.0])
    assert (one.n, one.mean) == (1, 2.0)
    assert np.isnan([one.std, one.low]).all()
    assert Summary.of([2.0, 2.0, 2.0]) == Summary(3, 0, 2.0, 0.0, 2.0, 2.0)
