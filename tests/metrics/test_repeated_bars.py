"""Similarities of bars, against a loop over pairs and cases by hand."""

from functools import partial
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from musicgen.metrics.repeated_bars import (
    bar_notes,
    bar_similarities,
    copied_and_varied_shares,
    new_and_repeated_bars,
    repeated_bar_share,
)
from musicgen.midi import Score, TimeSignature, Track
from tests.metrics import builders

piano = partial(builders.piano, step=120)  # rows in sixteenths


def table(*rows):
    return np.array(rows, np.int64).reshape(-1, 3)


events = st.lists(st.tuples(*(st.integers(0, high) for high in (11, 2, 2))), max_size=40)


def by_pairs(rows):
    """The sets of the bars, and Dice's coefficient of each pair m < n; None of two empty ones."""
    sets = [{row[1:] for row in rows if row[0] == bar} for bar in range(12)]
    pairs = {
        (m, n): 2 * len(sets[m] & sets[n]) / (len(sets[m]) + len(sets[n]))
        for m, n in combinations(range(12), 2)
        if sets[m] or sets[n]
    }
    return sets, pairs


@given(rows=events, first=st.integers(0, 6))
def test_measures_match_a_loop_over_pairs(rows, first):
    sets, pairs = by_pairs(rows)
    found = bar_similarities(table(*rows), 12)
    for m, n in combinations(range(12), 2):
        assert found[m, n] == found[n, m] or (np.isnan(found[m, n]) and (m, n) not in pairs)
        assert np.isnan(found[m, n]) or found[m, n] == pairs[m, n]

    counted = [n for n in range(first, 12) if sets[n]]
    like = [any(pairs[m, n] >= 0.8 for m in range(n - 3)) for n in counted]
    expected = np.mean(like) if counted else np.nan
    assert repeated_bar_share(found, first) == pytest.approx(expected, nan_ok=True)

    new, repeated = new_and_repeated_bars(found)
    old = [any(pairs.get((m, n), 0) >= 0.8 for m in range(n)) for n in range(12)]
    assert new.tolist() == [bool(sets[n]) and not old[n] for n in range(12)]
    like = [any(pairs.get((m, n), 0) >= 0.8 for m in range(n - 3)) for n in range(12)]
    assert repeated.tolist() == like


@pytest.mark.parametrize(("shared", "share"), [(4, 1), (3, 0)])
def test_bars_are_alike_from_a_dice_coefficient_of_four_fifths(shared, share):
    first = [(3 * i, 1, 60 + i) for i in range(5)]
    second = [(o + 64, n, p if i < shared else 90) for i, (o, n, p) in enumerate(first)]
    dice = bar_similarities(bar_notes(piano(*first, *second))[:, :3])
    assert dice[0, 4] == pytest.approx(shared / 5)
    assert repeated_bar_share(dice, 4) == share


def test_notes_of_bars():
    # Off the grid by less than half a step; in 3/4; drums are left out.
    score = piano((0.3, 3, 60), (12, 1.6, 62))
    score.time_signatures = [TimeSignature(0, 3, 4)]
    score.tracks.append(Track(is_drum=True, notes=score.tracks[0].notes))
    assert bar_notes(score).tolist() == [[0, 0, 60, 3], [1, 0, 62, 2]]
    assert np.isnan(repeated_bar_share(bar_similarities(bar_notes(Score()))))


def test_bars_of_the_prompt_can_be_repeated():
    prompt = table(*((bar, 0, 60 + bar) for bar in range(4)))
    new = np.where(prompt == 63, 90, prompt)  # all but the last bar are repeated
    joined = np.concatenate([prompt, new + np.array([8, 0, 0])])
    assert repeated_bar_share(bar_similarities(joined), 8) == 3 / 4
    assert repeated_bar_share(bar_similarities(new)) == 0


def test_copied_and_varied_bars_by_hand():
    # Step, pitch, duration: a figure, a copy with shorter notes, the same rhythm with other pitches,
    # another rhythm; bar 4 is empty.
    figure = [(0, 60, 4), (4, 64, 4), (8, 67, 8)]
    copied = [(0, 60, 3), (4, 64, 3), (8, 67, 6)]
    varied = [(0, 62, 4), (4, 65, 4), (8, 69, 8)]
    other = [(0, 60, 16)]
    bars = {0: figure, 1: copied, 2: varied, 3: other, 5: varied, 6: [(2, 60, 3)]}
    rows = np.array([(bar, *note) for bar, notes in bars.items() for note in notes])
    assert copied_and_varied_shares(rows) == pytest.approx((2 / 6, 1 / 6))
    assert copied_and_varied_shares(rows, 2) == pytest.approx((1 / 4, 1 / 4))
    assert np.isnan(copied_and_varied_shares(rows, 7)).all()
