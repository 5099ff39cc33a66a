"""Scores for the tests of metrics."""

from musicgen.midi import Score, Track, notes_from


def piano(*rows, step=1, tpb=480, name="Piano", is_drum=False) -> Score:
    """A score of one track from rows of (onset, length, pitch[, velocity]), times in `step` ticks."""
    notes = [(int(o * step), int(n * step), *more, 64)[:4] for o, n, *more in rows]
    return Score(tpb, [Track(name, 0, is_drum, notes_from(notes))])
