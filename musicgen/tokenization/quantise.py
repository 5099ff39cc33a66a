"""Ticks to grid steps, and notes to voices that sound one note at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from musicgen.errors import UserError
from musicgen.tokenization.vocabulary import IntArray


class GridNotes(NamedTuple):
    """Columns of notes in grid steps [num_notes]; a voice is what sounds one note at a time."""

    voice: IntArray
    onset: IntArray
    duration: IntArray
    velocity: IntArray


def to_grid(ticks: IntArray, steps_per_beat: int, ticks_per_beat: int) -> IntArray:
    """The nearest grid step of each tick; halves round up."""
    return (2 * steps_per_beat * ticks + ticks_per_beat) // (2 * ticks_per_beat)


def separate(notes: GridNotes) -> tuple[GridNotes, int, int]:
    """Make each voice sound one note at a time.

    Of notes that begin together in one voice, one stays, with the longest duration and the
    loudest velocity. A note that still sounds when its voice is struck again ends there.

    Returns:
        The notes sorted by voice, then onset; how many were merged; how many were shortened.
    """
    order = np.lexsort((notes.onset, notes.voice))
    voice, onset = notes.voice[order], notes.onset[order]
    first = np.ones(len(order), bool)
    first[1:] = (voice[1:] != voice[:-1]) | (onset[1:] != onset[:-1])
    starts = np.flatnonzero(first)
    if not len(starts):
        return notes, 0, 0
    voice, onset = voice[starts], onset[starts]
    duration = np.maximum.reduceat(notes.duration[order], starts)
    velocity = np.maximum.reduceat(notes.velocity[order], starts)

    room = np.diff(onset)
    overlaps = (voice[1:] == voice[:-1]) & (duration[:-1] > room)
    duration[:-1][overlaps] = room[overlaps]
    separated = GridNotes(voice, onset, duration, velocity)
    return separated, len(order) - len(starts), int(overlaps.sum())


def bins_of(setting: str, bins: Sequence[int], lowest: int, highest: int) -> range:
    """The values of bins given as lowest, highest, step, within what MIDI holds.

    Raises:
        UserError: no such bins.
    """
    low, high, step = bins if len(bins) == 3 else (0, 0, 0)
    if step < 1 or not lowest <= low <= high <= highest or (high - low) % step:
        raise UserError(
            f"{setting}={list(bins)}; give lowest, highest and step, whole steps apart, "
            f"within {lowest} and {highest}"
        )
    return range(low, high + 1, step)


def nearest(values: NDArray[Any], bins: range) -> IntArray:
    """The index of the nearest bin; halves round up."""
    clipped = np.clip(values, bins[0], bins[-1])
    return np.floor((clipped - bins.start) / bins.step + 0.5).astype(np.int64)


def changes(step: IntArray, value: IntArray) -> tuple[IntArray, IntArray]:
    """The last value of each step, where it differs from the one before; inputs sorted by step."""
    last = np.append(step[1:] != step[:-1], np.ones(len(step[:1]), bool))
    step, value = step[last], value[last]
    differs = np.append(np.ones(len(value[:1]), bool), value[1:] != value[:-1])
    return step[differs], value[differs]
