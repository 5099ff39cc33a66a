"""Descriptors against hand-computed cases, their definitions, and muspy."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.songs import clash_share
from musicgen.metrics.descriptors import (
    distribution_distance,
    grooving_similarity,
    muspy_descriptors,
    pitch_class_entropy,
)
from musicgen.midi import Score, TimeSignature, notes_from
from tests.metrics import builders

TPB = 480
BAR = 4 * TPB


def piano(*rows, is_drum=False) -> Score:
    """A score from rows of (onset in ticks, pitch)."""
    return builders.piano(*((onset, 60, pitch) for onset, pitch in rows), is_drum=is_drum)


note_rows = st.lists(
    st.tuples(st.integers(0, 5 * BAR - 61), st.integers(0, 127)), min_size=1, max_size=30
)


@settings(max_examples=40)
@given(rows=note_rows)
def test_bar_measures_match_their_definitions(rows):
    rows = [*rows, (4 * BAR, 60)]  # five bars
    grid, chroma = np.zeros((5, 64)), np.zeros((5, 12))
    for onset, pitch in rows:
        bar, within = divmod(onset, BAR)
        grid[bar, within * 64 // BAR] = 1
        chroma[bar, pitch % 12] += 1
    pairs = [1 - np.abs(a - b).mean() for a, b in combinations(grid, 2)]
    assert grooving_similarity(piano(*rows)) == pytest.approx(np.mean(pairs))

    for length in 1, 4:
        entropies = []
        for start in range(5 - length + 1):
            window = chroma[start : start + length].sum(0)
            p = window[window > 0] / max(1, window.sum())
            entropies += [-(p * np.log2(p)).sum()] if len(p) else []
        assert pitch_class_entropy(piano(*rows), length) == pytest.approx(np.mean(entropies))


def test_grooving_similarity_of_bars_of_several_lengths():
    score = piano(*((tick, 60) for tick in (0, BAR // 2, BAR, BAR + BAR // 4)))
    score.time_signatures = [TimeSignature(0, 4, 4), TimeSignature(BAR, 2, 4)]
    assert grooving_similarity(score) == 1  # a note at the beginning and in the middle of each


def test_undefined_values_are_nan():
    def undefined(score):
        return {name for name, value in muspy_descriptors(score).items() if np.isnan(value)}

    of_drums = {"drum_in_pattern_rate", "drum_pattern_consistency"}
    of_times = of_drums | {"empty_beat_rate", "groove_consistency"}
    assert undefined(piano((0, 60), (BAR, 62))) == of_drums
    drums = piano((0, 36), (BAR, 38), is_drum=True)
    assert (
        undefined(drums) == undefined(Score()) - of_times == {*muspy_descriptors(drums)} - of_times
    )
    assert np.isnan(grooving_similarity(piano((0, 60))))
    assert np.isnan(grooving_similarity(Score()))
    for nothing in (Score(), piano((0, 36), is_drum=True)):
        assert np.isnan(pitch_class_entropy(nothing, 4))


def test_overlap_of_known_densities():
    # Gaussian kernels, as wide as Scott's rule says, at the distances within and between.
    a, b = np.array([0.0, 1.0, 3.0]), np.array([9.0])
    within, between = np.array([1.0, 2.0, 3.0]), np.array([9.0, 8.0, 6.0])
    grid = np.linspace(0, 9, 200_001)

    def density(values):
        width = values.std(ddof=1) * len(values) ** (-1 / 5)
        kernels = np.exp(-0.5 * ((grid[:, None] - values) / width) ** 2).sum(1)
        return kernels / (kernels.sum() * (grid[1] - grid[0]))

    p, q = density(within), density(between)
    step = grid[1] - grid[0]
    overlap, divergence = distribution_distance(np.append(a, np.nan), b)
    assert overlap == pytest.approx(np.minimum(p, q).sum() * step, abs=2e-3)
    assert divergence == pytest.approx((p * np.log(p / q)).sum() * step, rel=5e-3)


@pytest.mark.parametrize("values", [[], [1.0, 2.0], [3.0, 3.0, 3.0], [np.nan] * 5])
def test_distances_of_too_few_or_equal_values_are_nan(values):
    found = distribution_distance(np.array(values), np.array([1.0, 2.0, 4.0]))
    assert np.isnan(found).all()


def test_semitones_and_major_sevenths_of_notes_that_sound_together_clash():
    # C4 and B5 clash; so would C4 and C#4, which begins as C4 ends. E4 sounds with all of them.
    notes = notes_from([(0, 4, 60, 80), (0, 8, 83, 80), (2, 6, 64, 80), (4, 4, 61, 80)])
    assert clash_share(notes) == pytest.approx(1 / 5)
    assert clash_share(notes[:1], notes[1:]) == pytest.approx(1 / 2)


def test_minor_ninths_clash_and_a_note_does_not_pair_with_itself():
    notes = notes_from([(0, 4, 60, 80), (1, 1, 73, 80), (1, 1, 60, 80)])
    assert clash_share(notes) == pytest.approx(2 / 3)
    assert np.isnan(clash_share(notes[:1]))
