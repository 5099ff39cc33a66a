"""The suffix array against sorting, passages against brute force and planted ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from musicgen.metrics.originality import GRID, PassageIndex, passage_notes, suffix_array
from musicgen.midi.score import Score, Track, notes_from


def melody(pitches, onsets=None):
    """Return notes, on quarters if `onsets` in beats are not given."""
    onsets = range(len(pitches)) if onsets is None else onsets
    notes = [(onset * GRID, pitch) for onset, pitch in zip(onsets, pitches, strict=True)]
    return np.array(notes, dtype=np.int64).reshape(-1, 2)


@given(st.lists(st.integers(0, 3), max_size=40))
def test_suffix_array_sorts_suffixes(text):
    expected = sorted(range(len(text)), key=lambda i: text[i:])
    assert suffix_array(np.array(text, dtype=np.int64), len(text)).tolist() == expected


def test_notes_of_a_score_by_hand():
    piano = notes_from([(0, 5, 64, 90), (0, 5, 60, 90), (15, 5, 62, 90), (21, 5, 62, 90)])
    doubled = notes_from([(0, 30, 60, 20), (10, 30, 48, 20)])
    drums = notes_from([(5, 5, 36, 90)])
    score = Score(10, [Track(notes=piano), Track(notes=doubled), Track(is_drum=True, notes=drums)])
    assert passage_notes(score).tolist() == [[0, 60], [0, 64], [24, 48], [36, 62], [50, 62]]
    assert passage_notes(Score()).shape == (0, 2)


def test_passage_by_hand():
    pieces = {
        "none": melody([]),
        "one": melody([60]),
        "scale": melody([60, 62, 64, 65, 67, 69]),
        "slow": melody([60, 62, 64, 65], onsets=[0, 2, 4, 6]),
        "scale again": melody([50, 40, 52, 54, 56, 57]),
    }
    index = PassageIndex(pieces)
    # A fourth higher and from the second beat on: the first four notes of the scale.
    passage = index.longest_passage(melody([30, 65, 67, 69, 70, 30]))
    assert passage is not None
    assert (passage.first, passage.num_notes) == (1, 4)
    assert (passage.onset, passage.last_onset) == (GRID, 4 * GRID)
    assert (passage.source, passage.source_onset, passage.transposition) == ("scale", 0, 5)
    assert passage.num_sources == 2
    # A semitone and two whole tones are the last four notes of the scale; a third ends the piece.
    passage = index.longest_passage(melody([40, 41, 43, 45, 47]))
    assert passage is not None
    assert (passage.first, passage.num_notes, passage.source) == (0, 4, "scale")
    assert (passage.source_onset, passage.transposition) == (2 * GRID, -24)


@pytest.mark.parametrize("notes", [melody([]), melody([60]), melody([60, 127])])
def test_music_without_a_passage(notes):
    assert PassageIndex({"a": melody([60, 62])}).longest_passage(notes) is None
    assert PassageIndex({}).longest_passage(notes) is None


lines = st.lists(st.tuples(st.integers(0, 2), st.integers(60, 62)), max_size=14).map(
    lambda steps: np.unique(
        np.array([*zip(np.cumsum([s for s, _ in steps]), [p for _, p in steps], strict=True)])
        .reshape(-1, 2)
        .astype(np.int64),
        axis=0,
    )
)


@given(st.lists(lines, max_size=4), lines)
def test_passages_against_brute_force(pieces, notes):
    def relative(part):
        return (part - part[:1]).tolist()

    best = max(
        (
            length
            for piece in pieces
            for length in range(2, min(len(piece), len(notes)) + 1)
            for i in range(len(piece) - length + 1)
            for j in range(len(notes) - length + 1)
            if relative(piece[i : i + length]) == relative(notes[j : j + length])
        ),
        default=0,
    )
    named = {str(number): piece for number, piece in enumerate(pieces)}
    passage = PassageIndex(named).longest_passage(notes)
    assert (passage.num_notes if passage else 0) == best
    if passage:
        source = named[passage.source]
        found = notes[passage.first :][: passage.num_notes]
        shifted = found - [passage.onset - passage.source_onset, passage.transposition]
        places = [relative(source[i:][:best]) for i in range(len(source))]
        assert relative(found) in places
        assert {tuple(note) for note in shifted.tolist()} <= {tuple(n) for n in source.tolist()}
