"""How alike the bars of a piece are, as sets of what begins in them, and which bars return."""

import numpy as np
from numpy.typing import NDArray

from musicgen.metrics.summary import mean_of_valid
from musicgen.midi import Score, pitched_notes

STEPS_PER_BEAT = 4
"""Grid on which bars are compared: sixteenth notes."""
ALIKE = 0.8
"""Dice's coefficient from which on a bar counts as a return of another."""
MIN_LAG = 4
"""Bars between a bar and its return, at least: what repeats sooner is a pattern."""

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Events = NDArray[np.int64]
"""A bar, from 0, and numbers that say what begins there, a row for each event: [N, 1 + columns]."""


def bar_notes(score: Score) -> Events:
    """Return bar, step, pitch and duration of the pitched notes, times in sixteenths: [N, 4]."""
    notes, starts = pitched_notes(score), score.bar_starts()
    bar = np.searchsorted(starts, notes["onset"], side="right") - 1
    ticks = np.stack((notes["onset"] - starts[bar], notes["duration"]))
    step, duration = np.rint(ticks * STEPS_PER_BEAT / score.ticks_per_beat).astype(np.int64)
    return np.stack((bar, step, notes["pitch"], duration), axis=1)


def bar_similarities(events: Events, num_bars: int | None = None) -> FloatArray:
    """Compute Dice's coefficient 2 |A ∩ B| / (|A| + |B|) of the sets of all pairs of bars.

    Args:
        num_bars: None: until the last event.

    Returns:
        [num_bars, num_bars]; NaN of two empty bars, so that the diagonal tells which are empty.
    """
    num_bars = num_bars or int(events[:, 0].max(initial=-1)) + 1
    kinds = np.unique(events[:, 1:], axis=0, return_inverse=True)[1].ravel()
    present = np.zeros((num_bars, kinds.max(initial=-1) + 1))
    present[events[:, 0], kinds] = 1
    sizes = np.add.outer(*2 * [present.sum(1)])
    nan = np.full(sizes.shape, np.nan)
    return np.divide(2 * (present @ present.T), sizes, out=nan, where=sizes > 0)


def bars_recalled(similarities: FloatArray, first: int = 0) -> float:
    """Return the share of bars that are like any bar at least `MIN_LAG` bars earlier.

    Empty bars do not count; NaN without others.

    Args:
        similarities: of `bar_similarities`.
        first: earlier bars, such as a prompt's, may return, and are not counted themselves.
    """
    returning = new_and_returning_bars(similarities)[1]
    filled = ~np.isnan(similarities.diagonal())
    return mean_of_valid(returning[first:][filled[first:]].astype(float))


def new_and_returning_bars(similarities: FloatArray) -> tuple[BoolArray, BoolArray]:
    """Return which bars are like no earlier bar, and which like one `MIN_LAG` bars earlier or more.

    Empty bars are neither. [num_bars], [num_bars]

    Args:
        similarities: of `bar_similarities`.
    """
    like = similarities >= ALIKE
    filled = ~np.isnan(similarities.diagonal())
    new = filled & ~np.tril(like, -1).any(axis=1)
    return new, filled & np.tril(like, -MIN_LAG).any(axis=1)
