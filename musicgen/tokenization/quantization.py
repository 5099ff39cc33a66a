"""Quantization of times and values, and removal of overlaps between notes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from musicgen.errors import ParameterError
from musicgen.tokenization.vocabulary import IntArray

if TYPE_CHECKING:
    from musicgen.tokenization.base import Losses


class GridNotes(NamedTuple):
    """Columns of notes in grid steps, [num_notes] each; a voice plays one note at a time."""

    voice: IntArray
    onset: IntArray
    duration: IntArray
    velocity: IntArray


def to_grid(ticks: IntArray, steps_per_beat: int, ticks_per_beat: int) -> IntArray:
    """Return the nearest grid step of each tick; halves round up."""
    return (2 * steps_per_beat * ticks + ticks_per_beat) // (2 * ticks_per_beat)


def remove_overlaps(notes: GridNotes, losses: Losses, unit: int = 1) -> GridNotes:
    """Make each voice play one note at a time; return the notes sorted by voice, then onset.

    Notes of one voice that begin together are merged into one with the longest duration and the
    highest velocity. A note ends at the latest where the next one of its voice begins.

    Args:
        unit: of the times, as a fraction of a grid step: 2 for half steps.
    """
    order = np.lexsort((notes.onset, notes.voice))
    voice, onset = notes.voice[order], notes.onset[order]
    first = np.ones(len(order), bool)
    first[1:] = (voice[1:] != voice[:-1]) | (onset[1:] != onset[:-1])
    losses.drop("notes doubling another", onset[~first] // unit)
    starts = np.flatnonzero(first)
    if not len(starts):
        return notes
    voice, onset = voice[starts], onset[starts]
    losses.kept = onset // unit
    duration = np.maximum.reduceat(notes.duration[order], starts)
    velocity = np.maximum.reduceat(notes.velocity[order], starts)

    gap = np.diff(onset)
    overlaps = (voice[1:] == voice[:-1]) & (duration[:-1] > gap)
    duration[:-1][overlaps] = gap[overlaps]
    losses.clip("notes struck again while sounding", onset[:-1][overlaps] // unit)
    return GridNotes(voice, onset, duration, velocity)


def parse_bins(
    name: str, bins: Sequence[int], minimum: int, maximum: int, step: int | None = None
) -> range:
    """Return the bins [lowest, highest, step], or [lowest, highest] with `step`, as a range."""
    given = list(bins) if step is None else [*bins, step]
    low, high, width = given if len(given) == 3 else (0, 0, 0)
    if width < 1 or not minimum <= low <= high <= maximum or (high - low) % width:
        content = "[lowest, highest, step]" if step is None else "[lowest, highest]"
        bounds = f"within {minimum} and {maximum}, an integer number of steps apart"
        raise ParameterError(name, list(bins), f"expected {content} {bounds}")
    return range(low, high + 1, width)


def nearest_bin(values: NDArray[Any], bins: range) -> IntArray:
    """Return the index of the nearest bin; halves round up."""
    index = (np.clip(values, bins[0], bins[-1]) - bins[0]) / bins.step
    return np.floor(index + 0.5).astype(np.int64)


def find_changes(step: IntArray, value: IntArray) -> tuple[IntArray, IntArray]:
    """Return the last value of each step where it changes; the inputs are sorted by step."""
    last = np.append(step[1:] != step[:-1], np.ones(len(step[:1]), bool))
    step, value = step[last], value[last]
    differs = np.append(np.ones(len(value[:1]), bool), value[1:] != value[:-1])
    return step[differs], value[differs]
