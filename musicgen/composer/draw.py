"""Random draws that depend on a key only, without global state; drawn notes in steps to ticks."""

import zlib
from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from operator import itemgetter
from typing import TypeVar

import numpy as np
from numpy.random import Generator

from musicgen.midi import NOTE, NoteArray, sort_notes
from musicgen.tokenization.quantization import end_before_next

T = TypeVar("T")
V = TypeVar("V")
StepNotes = list[tuple[int, int, int, int]]
"""Notes as onset and length in steps, pitch, and velocity."""


def generator(*key: int | str) -> Generator:
    """Return a random generator that is a function of the key; strings are hashed by CRC-32."""
    return np.random.default_rng(
        [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in key]
    )


def pick(rng: Generator, options: Mapping[T, float] | Sequence[T]) -> T:
    """Return a random option: uniformly from a sequence, by weight from a mapping."""
    if not isinstance(options, Mapping):
        return options[int(rng.random() * len(options))]
    totals = list(accumulate(options.values()))
    level = rng.random() * totals[-1]
    return next(option for option, total in zip(options, totals, strict=True) if level < total)


def chance(rng: Generator, probability: float) -> bool:
    """Return true with this probability."""
    return bool(rng.random() < probability)


def notes_of_part(step_notes: StepNotes | NoteArray, step: int) -> NoteArray:
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
