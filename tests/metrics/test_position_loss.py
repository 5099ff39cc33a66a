import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from musicgen.metrics.position_loss import (
    loss_curve,
    loss_summary,
    range_means,
    unit_values,
    witten_bell_losses,
)

NAN = math.nan


def test_curve_by_hand():
    pieces = [np.array([NAN, 2.0, 4.0, 6.0, NAN, NAN, NAN]), np.array([1.0, 1.0, 2.0])]
    curve = loss_curve(pieces, bucket=2)
    np.testing.assert_array_equal(curve["position"], [1, 3, 5, 7])
    np.testing.assert_array_equal(curve["num_targets"], [3, 3, 0, 0])
    np.testing.assert_allclose(curve["loss"], [4 / 3, 4, NAN, NAN])


def test_intervals_of_a_curve_by_hand():
    pieces = [np.array([1.0, 3.0]), np.array([4.0, 4.0]), np.array([2.0])]
    curve = loss_curve(pieces, bucket=2)
    # The ratio of sums is 14 / 5, so pieces deviate by -1.6, 2.4 and -0.8 from 2.8 times their
    # numbers of targets, which have the mean 5 / 3; Student's t is 4.3027 for 2 degrees.
    error = math.sqrt((1.6**2 + 2.4**2 + 0.8**2) / 2 / 3) / (5 / 3)
    assert curve["loss"][0] == pytest.approx(14 / 5)
    assert curve["high"][0] - 14 / 5 == pytest.approx(4.3027 * error, rel=1e-4)
    assert 14 / 5 - curve["low"][0] == pytest.approx(4.3027 * error, rel=1e-4)
    assert np.isnan(loss_curve(pieces[:1], bucket=2)["low"]).all()


def test_summaries_by_hand():
    pieces = [
        np.array([1.0, 3.0, 5.0, 5.0, 9.0, 9.0, 9.0, 9.0]),
        np.array([2.0, NAN, 2.0, 2.0, 4.0, 8.0, NAN, NAN]),
        np.array([3.0, 3.0]),
    ]
    summaries = [loss_summary(range_means(pieces, *ends)) for ends in ((0, 4), (4, 6), (4, 8))]
    trained, half, double = (SimpleNamespace(**row) for row in summaries)
    assert (trained.n, trained.mean) == (3, pytest.approx((3.5 + 2 + 3) / 3))
    assert trained.draws == trained.seeds == 1
    assert np.isnan([trained.draw_std, trained.seed_std]).all()
    assert (half.n, half.skipped, half.mean) == (2, 1, pytest.approx((9 + 6) / 2))
    assert half.std == pytest.approx(math.sqrt(4.5))
    assert double.mean == pytest.approx((9 + 6) / 2)


def test_seeds_by_hand():
    first = np.array([[[1.0, 3.0], [3.0, 5.0]], [[5.0, 7.0], [9.0, 11.0]]])  # [seeds, draws, L]
    second = np.array([[[2.0], [5.0]], [[6.0], [6.0]]])
    trained = SimpleNamespace(**loss_summary(range_means([first, second], 0, 2)))
    # A piece's figure is its mean over both seeds and both draws.
    assert (trained.n, trained.mean) == (2, pytest.approx((5.5 + 4.75) / 2))
    # Means over pieces: 2 and 4.5 in the draws of the first seed, 6 and 8 in those of the second.
    assert trained.seeds == trained.draws == 2
    assert trained.seed_std == pytest.approx((7 - 3.25) / math.sqrt(2))
    assert trained.draw_std == pytest.approx(math.sqrt((2.5**2 / 2 + 2**2 / 2) / 2))
    curve = loss_curve([first, second], bucket=2)
    np.testing.assert_allclose(curve["loss"], [(4.5 + 6.5 + 4.75) / 3])


def test_nats_per_unit_by_hand():
    # 2 + 4 + 6 nats over 3 units, and 3 over 1; NaN is padding.
    losses = [np.array([2.0, 4.0, 6.0]), np.array([3.0, math.nan])]
    summary = SimpleNamespace(**loss_summary(unit_values(losses, [3, 1])))
    assert summary.mean == pytest.approx(15 / 4)
    assert (summary.n, summary.draws, summary.seeds) == (2, 1, 1)
    # Linearised values 15/4 + (12 - 45/4) / 2 and 15/4 + (3 - 15/4) / 2.
    assert summary.std == pytest.approx(np.std([4.125, 3.375], ddof=1))
    # Of [seeds, draws, L]: per unit 1 and 3 in one seed, 2 and 4 in the other.
    piece = np.array([[[1.0, 0.0], [1.0, 2.0]], [[2.0, 0.0], [0.0, 4.0]]])
    np.testing.assert_allclose(unit_values([piece, 2 * piece], [1, 2]), 2 * [[[1, 3], [2, 4]]])
    assert np.isnan(unit_values([np.ones(3), np.ones(2)], [0, 0])).all()


V = 4
corpora = st.lists(st.lists(st.integers(0, V - 1), max_size=12), max_size=4)


def witten_bell(corpus, history, token):
    """Compute the interpolated probability by recursion on lists."""
    lower = witten_bell(corpus, history[1:], token) if history else 1 / V
    size = len(history)
    after = [
        s[i + size]
        for s in corpus
        for i in range(len(s) - size)
        if list(s[i : i + size]) == list(history)
    ]
    if not after:
        return lower
    return (after.count(token) + len(set(after)) * lower) / (len(after) + len(set(after)))


@settings(max_examples=60)
@given(corpus=corpora, sequence=st.lists(st.integers(0, V - 1), max_size=8))
def test_losses_match_the_recursion(corpus, sequence):
    expected = [
        -math.log(witten_bell(corpus, sequence[max(0, i - 2) : i], token))
        for i, token in enumerate(sequence)
    ]
    (losses,) = witten_bell_losses(V, corpus, [sequence])
    np.testing.assert_allclose(losses, expected, atol=1e-12)


def test_empty_corpus_is_uniform_and_large_vocabularies_are_supported():
    (losses,) = witten_bell_losses(50, [], [[3, 4, 5]])
    np.testing.assert_allclose(losses, math.log(50))
    top = np.array([2_000_000 - 1] * 5, dtype=np.uint32)
    (losses,) = witten_bell_losses(2_000_000, [top], [top])
    assert np.isfinite(losses).all()
