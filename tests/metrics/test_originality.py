"""The longest matches against brute force."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from musicgen.metrics.originality import Match, MatchIndex, match_notes
from musicgen.midi.score import Score, Track, notes_from


def test_notes_of_a_score_by_hand():
    piano = notes_from([(0, 5, 64, 90), (0, 5, 60, 90), (15, 5, 62, 90), (21, 5, 62, 90)])
    doubled = notes_from([(0, 30, 60, 20), (10, 30, 48, 20)])
    drums = notes_from([(5, 5, 36, 90)])
    score = Score(10, [Track(notes=piano), Track(notes=doubled), Track(is_drum=True, notes=drums)])
    assert match_notes(score).tolist() == [[0, 60], [0, 64], [24, 48], [36, 62], [50, 62]]
    assert match_notes(Score()).shape == (0, 2)


lines = st.lists(st.tuples(st.integers(0, 2), st.integers(60, 62)), max_size=14).map(
    lambda steps: np.unique(
        np.array([*zip(np.cumsum([s for s, _ in steps]), [p for _, p in steps], strict=True)])
        .reshape(-1, 2)
        .astype(np.int64),
        axis=0,
    )
)


@given(st.lists(lines, max_size=4), lines)
def test_matches_against_brute_force(pieces, notes):
    def relative(part):
        return (part - part[:1]).tolist()

    found = [
        (-length, first, number, start)
        for number, piece in enumerate(pieces)
        for length in range(2, min(len(piece), len(notes)) + 1)
        for first in range(len(notes) - length + 1)
        for start in range(len(piece) - length + 1)
        if relative(piece[start : start + length]) == relative(notes[first : first + length])
    ]
    named = {str(number): piece for number, piece in enumerate(pieces)}
    index = MatchIndex(named, lambda name, onset: 10 * int(name) + onset)
    match = index.longest_match(notes)
    if not found:
        assert match == Match(0, len(notes))
        return
    # The longest, of those the first, in the first piece that has it.
    length, first, number, start = min(found)
    (onset, pitch), (source_onset, source_pitch) = notes[first], pieces[number][start]
    assert match == Match(
        num_notes=-length,
        num_piece_notes=len(notes),
        first_beat=onset / 24,
        last_beat=notes[first - length - 1, 0] / 24,
        source=str(number),
        source_bar=10 * number + source_onset,
        transposition=pitch - source_pitch,
        num_sources=len({place[2] for place in found if place[:2] == (length, first)}),
    )
