"""Which bars of a piece repeat an earlier one, by the notes that begin in them."""

import numpy as np
from numpy.typing import NDArray

from musicgen.metrics.summary import mean_of_valid
from musicgen.midi import Score, pitched_notes

STEPS_PER_BEAT = 4
"""Grid on which bars are compared: sixteenth notes."""
ALIKE = 0.8
"""Dice coefficient from which two bars count as alike."""
MIN_LAG = 4
"""Bars between a bar and its repetition, at least: what repeats sooner is a pattern."""

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Events = NDArray[np.int64]
"""A row for each event: its bar, from 0, and numbers that say what begins: [N, 1 + columns]."""


def bar_notes(score: Score) -> Events:
    """Return bar, step, pitch and duration of the pitched notes, times in sixteenths: [N, 4]."""
    notes, starts = pitched_notes(score), score.bar_starts()
    bar = np.searchsorted(starts, notes["onset"], side="right") - 1
    ticks = np.stack((notes["onset"] - starts[bar], notes["duration"]))
    step, duration = np.rint(ticks * STEPS_PER_BEAT / score.ticks_per_beat).astype(np.int64)
    return np.stack((bar, step, notes["pitch"], duration), axis=1)


def bar_similarities(events: Events, num_bars: int | None = None) -> FloatArray:
    """Return the Dice coefficient 2 |A ∩ B| / (|A| + |B|) of the events of all pairs of bars.

    Args:
        num_bars: None: until the last event.

    Returns:
        [num_bars, num_bars]; NaN of two empty bars, so that the diagonal tells which are empty.
    """
    num_bars = num_bars or int(events[:, 0].max(initial=-1)) + 1
    kinds = np.unique(events[:, 1:], axis=0, return_inverse=True)[1].ravel()
    present = np.zeros((num_bars, kinds.max(initial=-1) + 1))
    present[events[:, 0], kinds] = 1
    num_events = present.sum(1)
    sizes = np.add.outer(num_events, num_events)
    nan = np.full(sizes.shape, np.nan)
    return np.divide(2 * (present @ present.T), sizes, out=nan, where=sizes > 0)


def repeated_bar_share(similarities: FloatArray, first: int = 0) -> float:
    """Return the share of bars that repeat a bar at least `MIN_LAG` bars earlier.

    Empty bars do not count. NaN if all are empty.

    Args:
        similarities: of `bar_similarities`.
        first: bars before it, such as a prompt's, can be repeated, but are not counted.
    """
    _, is_repeated = new_and_repeated_bars(similarities)
    filled = ~np.isnan(similarities.diagonal())
    return mean_of_valid(is_repeated[first:][filled[first:]].astype(float))


def new_and_repeated_bars(similarities: FloatArray) -> tuple[BoolArray, BoolArray]:
    """Return which bars are new, and which repeat a bar at least `MIN_LAG` bars earlier.

    A new bar is like no earlier one. Empty bars are neither, nor are those that only repeat one of
    the bars right before them. [num_bars], [num_bars]

    Args:
        similarities: of `bar_similarities`.
    """
    alike = similarities >= ALIKE
    filled = ~np.isnan(similarities.diagonal())
    is_new = filled & ~np.tril(alike, -1).any(axis=1)
    is_repeated = filled & np.tril(alike, -MIN_LAG).any(axis=1)
    return is_new, is_repeated
