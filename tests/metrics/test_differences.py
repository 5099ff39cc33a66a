"""Differences between sets of pieces, and the correction for many of them."""

from itertools import product

import numpy as np
import pytest
from scipy.stats import ttest_ind

from musicgen.metrics.intervals import holm, paired_difference, unpaired_difference


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
