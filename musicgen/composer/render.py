"""Conversion of grid steps to the ticks of a `Score`."""

from itertools import groupby
from operator import itemgetter
from typing import TypeVar

import numpy as np

from musicgen.midi import NOTE, NoteArray, sort_notes
from musicgen.tokenization.overlaps import end_before_next

T = TypeVar("T")
V = TypeVar("V")
StepNotes = list[tuple[int, int, int, int]]
"""Notes as onset and length in steps, pitch, and velocity."""


def notes_of_part(step_notes: StepNotes, step: int) -> NoteArray:
    """Return the notes of a part in ticks, without overlaps at one pitch.

    Of several notes with the same pitch and onset, the loudest remains. A note ends at the latest
    where the next note of its pitch begins.

    Args:
        step_notes: notes in any order.
        step: ticks in a step.
    """
    notes = np.array(step_notes, NOTE)
    notes["onset"] *= step
    notes["duration"] *= step
    order = np.lexsort((-notes["duration"], -notes["velocity"], notes["onset"], notes["pitch"]))
    notes = notes[order]
    _, first = np.unique(notes["pitch"] << 32 | notes["onset"], return_index=True)
    notes = notes[first]
    notes["duration"] = end_before_next(notes["pitch"], notes["onset"], notes["duration"])
    return sort_notes(notes)


def changes(events: list[tuple[T, V]]) -> list[tuple[T, V]]:
    """Return the (time, value) events whose value differs from the previous value."""
    return [next(run) for _, run in groupby(events, key=itemgetter(1))]
