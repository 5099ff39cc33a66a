import math

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from musicgen.metrics.intervals import Summary


def test_summary_by_hand():
    summary = Summary.of([1.0, math.nan, 2.0, 3.0, 6.0, math.nan])
    assert (summary.n, summary.skipped, summary.mean) == (4, 2, 3.0)
    assert summary.std == pytest.approx(math.sqrt(14 / 3))


def test_interval_is_that_of_scipy():
    values = [3.0, 1.0, 4.0, 1.5, 9.0]
    found = ttest_1samp(values, 0).confidence_interval()
    assert (Summary.of(values).low, Summary.of(values).high) == pytest.approx(tuple(found))


@pytest.mark.parametrize("n", [6, 10, 12, 24])
@pytest.mark.parametrize(
    ("draw", "mean", "least"),
    [
        (lambda rng, size: rng.normal(size=size), 0, 0.94),
        (lambda rng, size: rng.exponential(size=size), 1, 0.88),
        (lambda rng, size: rng.random(size) < 0.1, 0.1, 0.98),  # of intervals that there are
    ],
    ids=["normal", "skewed", "rare"],
)
def test_intervals_hold_the_true_mean(draw, mean, least, n):
    summaries = [Summary.of(values) for values in draw(np.random.default_rng(1), (3000, n))]
    told = [x for x in summaries if not math.isnan(x.low)]
    assert np.mean([x.low <= mean <= x.high for x in told]) >= least
    assert all(x.std == 0 for x in summaries if math.isnan(x.low))


@pytest.mark.parametrize("n", [6, 12])
def test_intervals_of_similarities_stay_between_0_and_1(n):
    draws = np.random.default_rng(2).beta(9, 0.5, (2000, n))  # with a mean of 18/19
    summaries = [Summary.of(values, similarities=True) for values in draws]
    assert all(0 < x.low < x.mean < x.high < 1 for x in summaries)
    assert any(x.high > 1 for x in map(Summary.of, draws))
    # Those of Student's t hold it in 87%.
    assert np.mean([x.low <= 18 / 19 <= x.high for x in summaries]) > 0.91
    assert math.isnan(Summary.of([1.0, 1.0], similarities=True).high)


def test_few_or_equal_values():
    empty = Summary.of([math.nan])
    assert (empty.n, empty.skipped) == (0, 1)
    assert math.isnan(empty.mean)
    one = Summary.of([2.0])
    assert (one.n, one.mean) == (1, 2.0)
    assert np.isnan([one.std, one.low]).all()
    equal = Summary.of([2.0, 2.0, 2.0])  # which do not tell how far others are
    assert (equal.n, equal.mean, equal.std) == (3, 2.0, 0.0)
    assert np.isnan([equal.low, equal.high]).all()
