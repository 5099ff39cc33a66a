"""Chord recognition against known chords, plain loops and brute force."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from musicgen.composer import compose_pop
from musicgen.errors import UserError
from musicgen.midi import Marker, Score, Track, notes_from
from musicgen.tokenization.chord_recognition import _best_path, recognise_chords, with_chords
from musicgen.tokenization.chords import CHORDS, INTERVALS, NO_CHORD, QUALITIES, chord_index

BEAT = 480


def block(chord, start, length, bass=36):
    """A chord of the vocabulary as notes: its root low, and its tones below the melody."""
    root, quality = divmod(chord, len(QUALITIES))
    pitches = [bass + root, *(48 + root + interval for interval in INTERVALS[QUALITIES[quality]])]
    return [(start, length, pitch, 64) for pitch in pitches]


def piece(rows, **kwargs):
    return Score(BEAT, [Track("Piano", notes=notes_from(rows))], **kwargs)


def test_every_chord_of_the_vocabulary_is_recognised_where_it_begins():
    order = np.random.default_rng(0).permutation(NO_CHORD)
    rows = [row for i, c in enumerate(order) for row in block(int(c), 4 * i * BEAT, 4 * BEAT)]
    markers = recognise_chords(piece(rows))
    assert markers == [Marker(4 * i * BEAT, CHORDS[c]) for i, c in enumerate(order)]


def test_changes_within_a_bar():
    c, f = CHORDS.index("C_M"), CHORDS.index("F_M")
    rows = block(c, 0, 2 * BEAT) + block(f, 2 * BEAT, BEAT) + block(c, 3 * BEAT, BEAT)
    assert recognise_chords(piece(rows)) == [(0, "C_M"), (2 * BEAT, "F_M"), (3 * BEAT, "C_M")]


def test_passing_notes_do_not_change_the_chord():
    rows = block(CHORDS.index("C_M"), 0, 4 * BEAT)
    rows += [(i * BEAT, BEAT, pitch, 90) for i, pitch in enumerate((74, 77, 81, 79))]
    assert recognise_chords(piece(rows)) == [Marker(0, "C_M")]


def test_silence_has_no_chord_but_a_short_rest_keeps_it():
    chord = CHORDS.index("A_m")
    rows = block(chord, 8 * BEAT, 3 * BEAT) + block(chord, 12 * BEAT, 4 * BEAT)
    assert recognise_chords(piece(rows)) == [Marker(0, "N_N"), Marker(8 * BEAT, "A_m")]


def test_drums_and_empty_scores_have_no_chords():
    drums = Track("Drums", is_drum=True, notes=notes_from(block(3, 0, 4 * BEAT)))
    assert recognise_chords(Score(BEAT, [drums])) == []
    assert recognise_chords(Score()) == []
    score = piece(block(CHORDS.index("G_7"), 0, 4 * BEAT))
    assert recognise_chords(replace(score, tracks=[drums, *score.tracks])) == [Marker(0, "G_7")]


@given(st.integers(1, 5), st.integers(2, 4), st.integers(0, 2**32))
@settings(max_examples=60)
def test_the_path_is_optimal(num_beats, num_states, seed):
    rng = np.random.default_rng(seed)
    fits, cost = rng.normal(size=(num_beats, num_states)), rng.random(num_beats)

    def total(path):
        changes = sum(cost[i] for i in range(1, num_beats) if path[i] != path[i - 1])
        return sum(fits[i, state] for i, state in enumerate(path)) - changes

    best = max(itertools.product(range(num_states), repeat=num_beats), key=total)
    assert _best_path(fits, cost).tolist() == list(best)


def test_chords_of_composed_pieces_are_recognised():
    same = total = 0
    for index in range(10):
        score = compose_pop(1, index)
        beats = np.arange(0, score.end, score.ticks_per_beat) + score.ticks_per_beat // 2
        sides = []
        for markers in (score.markers, recognise_chords(score)):
            at = np.searchsorted([m.tick for m in markers], beats, side="right") - 1
            sides.append(np.array([chord_index(m.text) for m in markers])[at])
        same += (sides[0] // len(QUALITIES) == sides[1] // len(QUALITIES)).sum()
        total += len(beats)
    assert same / total > 0.92


def test_a_gap_of_millions_of_bars_is_limited():
    rows = block(CHORDS.index("D_m"), 0, 4 * BEAT) + block(3, 2 * 10**8, 4 * BEAT)
    markers = recognise_chords(piece(rows))
    assert markers[0] == Marker(0, "D_m")
    assert markers[-1].tick < 2 * 10**8


def test_sources_of_chords():
    rows = block(CHORDS.index("D_m"), 0, 4 * BEAT)
    plain = piece(rows, markers=[Marker(0, "Verse")])
    annotated = piece(rows, markers=[Marker(0, "Verse"), Marker(0, "F_M_D")])
    recognised = [Marker(0, "Verse"), Marker(0, "D_m")]
    later = [Marker(2 * BEAT, "Coda"), Marker(4 * BEAT, "G_M"), Marker(4 * BEAT, "Coda")]
    found = with_chords(piece(rows + block(3, 4 * BEAT, BEAT), markers=later), "auto")
    assert found.markers == [Marker(0, "D_m"), later[0], later[2], later[1]]
    for source, of_plain, of_annotated in (
        ("markers", plain.markers, annotated.markers),
        ("auto", recognised, annotated.markers),
        ("recognised", recognised, recognised),
        ("none", plain.markers, plain.markers),
    ):
        assert with_chords(plain, source).markers == of_plain
        assert with_chords(annotated, source).markers == of_annotated
    assert with_chords(plain, "auto").tracks == plain.tracks
    with pytest.raises(UserError, match=r"^source=yes: expected one of auto, markers"):
        with_chords(plain, "yes")
