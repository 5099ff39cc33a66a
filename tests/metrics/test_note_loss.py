import math

import numpy as np
import pytest

from musicgen.metrics import unit_summary


def test_nats_per_unit_by_hand():
    # 2 + 4 + 6 nats over 3 units, and 3 over 1; NaN is padding.
    losses = [np.array([2.0, 4.0, 6.0]), np.array([3.0, math.nan])]
    summary = unit_summary(losses, [3, 1])
    assert summary.mean == pytest.approx(15 / 4)
    assert (summary.n, summary.draws, summary.seeds) == (2, 1, 1)
    # Linearised values 15/4 + (12 - 45/4) / 2 and 15/4 + (3 - 15/4) / 2.
    assert summary.std == pytest.approx(np.std([4.125, 3.375], ddof=1))


def test_pieces_of_equal_loss_per_unit_have_no_spread():
    summary = unit_summary([np.ones(4), np.ones(40), np.ones(12)], [2, 20, 6])
    assert [summary.mean, summary.std, summary.low, summary.high] == pytest.approx([2, 0, 2, 2])


def test_draws_and_seeds_have_deviations_of_their_own():
    # Of [seeds, draws, L]: per unit 1 and 3 in one seed, 2 and 4 in the other.
    piece = np.array([[[1.0, 0.0], [1.0, 2.0]], [[2.0, 0.0], [0.0, 4.0]]])
    summary = unit_summary([piece, 2 * piece], [1, 2])
    assert summary.mean == pytest.approx(2.5)
    assert summary.draw_std == pytest.approx(math.sqrt(2))
    assert summary.seed_std == pytest.approx(math.sqrt(0.5))


def test_without_units_there_is_no_loss_per_unit():
    assert math.isnan(unit_summary([np.ones(3), np.ones(2)], [0, 0]).mean)
