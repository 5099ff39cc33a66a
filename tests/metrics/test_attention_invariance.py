"""T, M and half widths against hand-computed cases and a closed form by pairs."""

import itertools
import math

import numpy as np
import pytest

from musicgen.metrics.attention_invariance import (
    by_offset,
    half_width,
    invariance_rows,
    monotonicity,
    translation_invariance,
)

LENGTH = 40
OFFSETS = np.subtract.outer(np.arange(LENGTH), np.arange(LENGTH))


def test_random_matrices_equal_the_definition():
    attention = np.random.default_rng(1).random((2, 3, LENGTH, LENGTH))
    weights = by_offset(attention, slice(10, 30), 12)
    for index in np.ndindex(2, 3):
        a = attention[index]
        diagonals = [[a[m, m - d] for m in range(10, 30) if m >= d] for d in range(12)]
        number = sum(map(len, diagonals))
        t = sum(len(x) * np.var(x) for x in diagonals) / number / np.var(np.concatenate(diagonals))
        assert translation_invariance(weights)[index] == pytest.approx(t)
        rows = [[a[m, m - d] for d in range(12) if m >= d] for m in range(10, 30)]
        pairs = [far > near for row in rows for near, far in itertools.combinations(row, 2)]
        assert monotonicity(weights)[index] == pytest.approx(np.mean(pairs))


def test_ranges_of_queries_and_offsets():
    decaying = 0.9**OFFSETS
    rows = invariance_rows(np.stack((1 / decaying, decaying)), 32)
    queries = ["0–15", "16–31", "32–39"]
    ranges = [(row["queries"], row["offsets below"]) for row in rows]
    assert ranges == [(each, offsets) for each in queries for offsets in (2, 8, 16)]
    for row in rows:  # those of the best head
        assert (row["T"], row["M"]) == pytest.approx((0, 0), abs=1e-12)
    row = invariance_rows(decaying[None, :5, :5], 8)[4]  # nothing beyond the training length
    assert (row["queries"], row["offsets below"]) == ("4–4", 2)


def test_rounding_errors_are_no_differences():
    noise = 1 + 1e-12 * np.random.default_rng(0).random((1, LENGTH, LENGTH))
    for row in invariance_rows(noise, 32):
        assert np.isnan(row["T"])
        assert row["M"] == 0
    assert np.isnan(monotonicity(by_offset(np.ones((1, 1)), slice(None), 2)))  # one key


def test_half_widths_of_kernels():
    lags = np.arange(128)
    kernels = [
        *(0.5 ** (lags / half_life) for half_life in (2, 10, 50)),
        (1 - lags / 20).clip(min=0),  # a triangle
        np.abs(np.cos(2 * np.pi * lags / 8)),  # a sixth of a turn
    ]
    assert half_width(np.stack(kernels)) == pytest.approx([2, 10, 50, 10, 8 / 6], abs=0.1)
    assert math.isinf(half_width(np.full(9, 0.7)))
    assert math.isnan(half_width(np.zeros(9)))
