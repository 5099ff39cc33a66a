"""From steps of a grid to the ticks of a `Score`."""

from __future__ import annotations

import numpy as np

from musicgen.midi import NOTE, NoteArray, sort_notes

TICKS_PER_BEAT = 480


def settle(rows: list[tuple[int, int, int, int]], step: int) -> NoteArray:
    """A playable part from rows of (onset, length, pitch, velocity).

    Of two notes of one pitch struck together the louder stays; one still sounding when its pitch
    is struck again ends there.

    Args:
        rows: onset and length in steps, pitch, velocity; in any order.
        step: ticks of a step.
    """
    notes = np.array(rows, NOTE)
    notes["onset"] *= step
    notes["duration"] *= step
    order = np.lexsort((-notes["duration"], -notes["velocity"], notes["onset"], notes["pitch"]))
    notes = notes[order]
    again = np.zeros(len(notes), bool)
    again[1:] = (notes["pitch"][1:] == notes["pitch"][:-1]) & (
        notes["onset"][1:] == notes["onset"][:-1]
    )
    notes = notes[~again]
    same = notes["pitch"][1:] == notes["pitch"][:-1]
    gap = np.where(same, np.diff(notes["onset"]), np.iinfo(np.int64).max)
    notes["duration"][:-1] = np.minimum(notes["duration"][:-1], gap)
    return sort_notes(notes)
