"""Differences between sets of pieces, and the correction for many of them."""

from itertools import product

import numpy as np
import pytest
from scipy.stats import ttest_1samp, ttest_ind

from musicgen.metrics.intervals import (
    Summary,
    crossed_difference,
    holm,
    paired_difference,
    unpaired_difference,
)


def named(values) -> dict[str, float]:
    return {f"piece {i}": float(x) for i, x in enumerate(values)}


@pytest.mark.parametrize("seed", range(4))
def test_p_is_the_share_of_all_exchanges(seed):
    rng = np.random.default_rng(seed)
    first, second = rng.normal(0.5, 1, 9), rng.normal(0, 1, 9)
    difference = first - second
    means = [abs(np.mean(np.multiply(signs, difference))) for signs in product((1, -1), repeat=9)]
    expected = np.mean([mean >= abs(difference.mean()) - 1e-12 for mean in means])
    found = paired_difference(named(first), named(second))
    assert found.p == pytest.approx(expected)
    assert found.mean == pytest.approx(difference.mean())
    assert found.low < found.mean < found.high


def test_pairs_are_of_one_name_and_without_missing_values():
    first = {"a": 3.0, "b": 5.0, "c": np.nan, "only here": 100.0}
    found = paired_difference(first, {"b": 1.0, "a": 1.0, "c": 2.0})
    assert (found.n, found.mean, found.means) == (2, 3.0, (4.0, 1.0))
    assert found.p == 0.5  # of the four exchanges, both equal ones are as far from 0
    assert np.isnan(paired_difference({"a": 1.0}, {"b": 1.0}).p)
    assert paired_difference(first, first)[:4] == (3, 0, 0, 0)


def test_interval_of_other_pieces_is_that_of_scipy():
    first, second = [1.0, 4.0, 2.0, 7.0], [3.0, 3.0, 3.5, 2.0, 8.0, 20.0]
    expected = ttest_ind(first, second, equal_var=False).confidence_interval()
    found = unpaired_difference(named(first), named(second))
    assert (found.n, found.low, found.high) == pytest.approx((4, *expected))
    assert np.isnan(unpaired_difference({"a": 1.0}, {"b": 2.0}).low)
    assert np.isnan(unpaired_difference(named([1, 1]), named([2, 2, 2])).low)


def test_holm_by_hand():
    # Sorted: .01 · 4, .02 · 3, .03 · 2 and .04 · 1, none below one before.
    assert holm([0.04, 0.01, 0.03, np.nan, 0.02])[:3] == pytest.approx([0.06, 0.04, 0.06])
    assert np.isnan(holm([0.04, np.nan])[1])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_the_difference_of_groups_is_that_of_their_means_if_pieces_agree():
    rng, of_pieces = np.random.default_rng(0), np.arange(5.0)
    first, second = rng.normal(0, 1, 3), rng.normal(1, 1, 2)
    expected = ttest_ind(first, second)
    groups = [[named(of_pieces + run) for run in group] for group in (first, second)]
    found = crossed_difference(*groups)
    interval = expected.confidence_interval()
    assert found.mean == pytest.approx(first.mean() - second.mean())
    assert found.means == pytest.approx((2 + first.mean(), 2 + second.mean()))
    assert (found.low, found.high) == pytest.approx(tuple(interval))
    assert found.p == pytest.approx(expected.pvalue)


def test_the_difference_of_groups_is_that_of_pieces_if_runs_agree():
    rng = np.random.default_rng(0)
    first, second = rng.normal(0.5, 1, 9), rng.normal(0, 1, 9)
    expected = ttest_1samp(first - second, 0)
    found = crossed_difference([named(first)] * 3, [named(second)] * 2)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval()))
    assert (found.n, found.p) == (9, pytest.approx(expected.pvalue))
    assert crossed_difference([named(first)], [named(second)]) == paired_difference(
        named(first), named(second)
    )


def test_a_difference_of_groups_is_rarely_found_where_there_is_none():
    rng, found = np.random.default_rng(0), []
    for _ in range(400):
        groups = [
            [named(of_pieces + rng.normal(0, 0.3) + rng.normal(0, 0.3, 12)) for _ in range(3)]
            for of_pieces in rng.normal(0, 0.3, (2, 12))
        ]
        found.append(crossed_difference(*groups).p < 0.05)
    assert 0.02 < np.mean(found) < 0.08  # over pieces alone, a third of them


def test_the_mean_of_one_group_is_that_of_its_pieces_if_runs_agree():
    values = named(np.random.default_rng(0).uniform(0, 0.3, 9))
    summary = Summary.of(values.values())
    found = crossed_difference([values] * 3)
    assert (found.mean, found.low) == pytest.approx((summary.mean, summary.low))
    summary = Summary.of(values.values(), similarities=True)
    found = crossed_difference([values] * 3, similarities=True)
    assert (found.low, found.high) == pytest.approx((summary.low, summary.high))
    assert np.isnan(crossed_difference([named([1, 1])] * 2).low)
    assert crossed_difference([named([1, 1])] * 2, [named([1, 1])])[:5] == (2, 0, 0, 0, 1)


def test_groups_leave_out_pieces_that_a_run_lacks():
    runs = [{"a": 3.0, "b": 5.0, "c": np.nan}, {"a": 4.0, "b": 6.0, "c": 1.0}]
    found = crossed_difference(runs, [{"a": 1.0, "b": 3.0, "d": 0.0}])
    assert (found.n, found.mean, found.means) == (2, 2.5, (4.5, 2.0))
    assert np.isnan(crossed_difference(runs, [{"a": 1.0}]).p)
    same = crossed_difference(runs, runs)
    assert (same.mean, same.p) == (0, 1)
    assert same.low == -same.high < 0
