"""T, M and half widths against hand-computed cases and a closed form by pairs."""

from __future__ import annotations

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


def scores(attention, queries=slice(None), max_offset=LENGTH) -> tuple[float, float]:
    weights = by_offset(attention, queries, max_offset)
    return float(translation_invariance(weights)), float(monotonicity(weights))


def test_toeplitz_matrices():
    decaying = 0.9**OFFSETS
    assert scores(decaying) == pytest.approx((0, 0), abs=1e-12)
    assert scores(1 / decaying) == pytest.approx((0, 1), abs=1e-12)
    assert scores(decaying, slice(20, 40), 7) == pytest.approx((0, 0), abs=1e-12)


def test_by_hand():
    attention = np.array([[1.0, 9, 9], [2, 3, 9], [6, 4, 5]])
    # Offsets 0: 1, 3, 5; 1: 2, 4; 2: 6. Their variances 8/3, 1, 0, of all six 35/12.
    t = (3 * 8 / 3 + 2 * 1) / 6 / (35 / 12)
    # Rows from the nearest key on: 1; 3, 2; 5, 4, 6: two inversions of 0 + 1 + 3 pairs.
    assert scores(attention) == pytest.approx((t, 2 / 4))
    # Offsets below 2 of the last two queries: 3, 2 and 5, 4.
    t = (2 * 1 + 2 * 1) / 4 / np.var([3, 2, 5, 4])
    assert scores(attention, slice(1, 3), 2) == pytest.approx((t, 0))
    np.testing.assert_array_equal(by_offset(attention, slice(2, 3), 3), [[5, 4, 6]])


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


def test_monotonicity_of_kernels():
    lags = np.arange(64)
    assert monotonicity(lags[None] / 64) == 1
    zigzag = np.where(lags % 3 == 0, 1.0, 0.0) - 0.5 * (lags % 3 == 2)  # 1, 0, −½, 1, …
    assert monotonicity(zigzag[None]) == pytest.approx(1 / 3, abs=0.02)
    # Pairs of 5 values in a period of 8, two of which occur once: 14 of 64 are equal.
    wave = np.cos(2 * np.pi * lags / 8)
    assert monotonicity(wave[None], 1e-9) == pytest.approx((1 - 14 / 64) / 2, abs=0.02)
