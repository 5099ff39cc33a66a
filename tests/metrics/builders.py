"""Scores for the tests of metrics."""

import numpy as np

from musicgen.midi import Score, Track, notes_from


def piano(*rows, step=1, tpb=480, name="Piano", is_drum=False) -> Score:
    """A score of one track from rows of (onset, length, pitch[, velocity]), times in `step` ticks."""
    notes = [(int(o * step), int(n * step), *more, 64)[:4] for o, n, *more in rows]
    return Score(tpb, [Track(name, 0, is_drum, notes_from(notes))])


def four_parts(*chords, beats=None) -> Score:
    """Chords of one beat each, or of `beats`, from soprano to bass; None is silence."""
    lengths = 12 * np.array(beats or [1] * len(chords))
    starts = (np.cumsum(lengths) - lengths).tolist()
    tracks = []
    for voice, pitches in enumerate(zip(*chords, strict=True)):
        rows = zip(starts, lengths.tolist(), pitches, strict=True)
        notes = notes_from([(*row, 80) for row in rows if row[2] is not None])
        tracks.append(Track(f"Voice {voice}", notes=notes))
    return Score(12, tracks)
