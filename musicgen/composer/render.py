"""Conversion of grid steps to the ticks of a `Score`."""

from itertools import groupby
from operator import itemgetter
from typing import TypeVar

import numpy as np

from musicgen.midi import NOTE, NoteArray, sort_notes
from musicgen.tokenization.overlaps import end_before_next

V = TypeVar("V")
Rows = list[tuple[int, int, int, int]]
"""Onset and length in steps, pitch, velocity."""


def notes_of_part(rows: Rows, step: int) -> NoteArray:
    """Return the notes of a part, without overlaps at one pitch.

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
    notes["duration"] = end_before_next(notes["pitch"], notes["onset"], notes["duration"])
    return sort_notes(notes)


def changes(events: list[tuple[int, V]]) -> list[tuple[int, V]]:
    """Return the (tick, value) events whose value differs from the previous one."""
    return [next(run) for _, run in groupby(events, key=itemgetter(1))]
