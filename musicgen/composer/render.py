"""Conversion of grid steps to the ticks of a `Score`."""

from itertools import groupby
from operator import itemgetter
from typing import TypeVar

import numpy as np

from musicgen.midi import NOTE, NoteArray, sort_notes

V = TypeVar("V")
Rows = list[tuple[int, int, int, int]]
"""Onset and length in steps, pitch, velocity."""


def remove_overlaps(rows: Rows, step: int) -> NoteArray:
    """Return the notes of a part without overlaps at one pitch.

    Of notes of one pitch with the same onset, the loudest stays. A note ends at the latest where
    the next one of its pitch begins.

    Args:
        rows: in any order.
        step: ticks in a step.
    """
    notes = np.array(rows, NOTE)
    notes["onset"] *= step
    notes["duration"] *= step
    order = np.lexsort((-notes["duration"], -notes["velocity"], notes["onset"], notes["pitch"]))
    notes = notes[order]
    _, first = np.unique(notes["pitch"] << 32 | notes["onset"], return_index=True)
    notes = notes[first]
    same = notes["pitch"][1:] == notes["pitch"][:-1]
    gap = np.where(same, np.diff(notes["onset"]), np.iinfo(np.int64).max)
    notes["duration"][:-1] = np.minimum(notes["duration"][:-1], gap)
    return sort_notes(notes)


def changes(events: list[tuple[int, V]]) -> list[tuple[int, V]]:
    """Return the (tick, value) events whose value differs from the previous one."""
    return [next(run) for _, run in groupby(events, key=itemgetter(1))]
