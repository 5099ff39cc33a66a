"""Repeated bars: which bars of a piece are like an earlier bar, by the notes that begin in them."""

import numpy as np
from numpy.typing import NDArray

from musicgen.metrics.summary import mean_of_valid
from musicgen.midi import Score, pitched_notes

STEPS_PER_BEAT = 4
"""Grid on which bars are compared: sixteenth notes."""
ALIKE = 0.8
"""Dice coefficient from which on two bars count as alike."""
MIN_LAG = 4
"""Smallest distance in bars of a repetition. A bar that repeats sooner is part of a pattern."""

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Events = NDArray[np.int64]
"""A row for each note: its bar, from 0, and the numbers by which notes are compared: [N, C]."""


def bar_notes(score: Score) -> Events:
    """Return bar, step in the bar, pitch and duration of pitched notes, in sixteenths: [N, 4]."""
    notes, starts = pitched_notes(score), score.bar_starts()
    bar = np.searchsorted(starts, notes["onset"], side="right") - 1
    ticks = np.stack((notes["onset"] - starts[bar], notes["duration"]))
    step, duration = np.rint(ticks * STEPS_PER_BEAT / score.ticks_per_beat).astype(np.int64)
    return np.stack((bar, step, notes["pitch"], duration), axis=1)


def bar_similarities(events: Events, num_bars: int | None = None) -> FloatArray:
    """Return the Dice coefficient 2 |A ∩ B| / (|A| + |B|) of the notes of each pair of bars.

    Args:
        events: the notes.
        num_bars: number of bars; None: up to the last note.

    Returns:
        [num_bars, num_bars], NaN for two empty bars. The diagonal is therefore NaN for empty bars.
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

    Empty bars are not counted. The share is NaN if all bars are empty.

    Args:
        similarities: what `bar_similarities` returned.
        first: first bar to count. Bars before it, such as those of a prompt, can be repeated.
    """
    _, is_repeated = new_and_repeated_bars(similarities)
    filled = ~np.isnan(similarities.diagonal())
    return mean_of_valid(is_repeated[first:][filled[first:]].astype(float))


def new_and_repeated_bars(similarities: FloatArray) -> tuple[BoolArray, BoolArray]:
    """Return which bars are new, and which repeat a bar at least `MIN_LAG` bars earlier.

    A new bar is like no earlier bar. Empty bars are neither new nor repeated. Bars that are like
    one of the last `MIN_LAG − 1` bars only are neither.

    Args:
        similarities: what `bar_similarities` returned.

    Returns:
        Two masks [num_bars].
    """
    alike = similarities >= ALIKE
    filled = ~np.isnan(similarities.diagonal())
    is_new = filled & ~np.tril(alike, -1).any(axis=1)
    is_repeated = filled & np.tril(alike, -MIN_LAG).any(axis=1)
    return is_new, is_repeated


def copied_and_varied_shares(events: Events, first: int = 0) -> tuple[float, float]:
    """Return which share of the bars copies an earlier bar, and which varies one.

    A copy has the onsets and pitches of an earlier bar; its durations do not count, as they depend
    on the articulation. A variation is no copy, and has the rhythm of an earlier bar, onsets and
    durations, up to `ALIKE`. Empty bars are not counted. The shares are NaN if all bars are empty.

    Args:
        events: what `bar_notes` returned. [N, 4]
        first: first bar to count. Bars before it can be copied and varied.
    """
    similarities, of_rhythms = (bar_similarities(events[:, [0, 1, i]]) for i in (2, 3))
    is_copy = np.tril(similarities == 1, -1).any(axis=1)
    has_rhythm = np.tril(of_rhythms >= ALIKE, -1).any(axis=1)
    filled = ~np.isnan(similarities.diagonal())
    filled[:first] = False
    shares = [
        mean_of_valid(each[filled].astype(float)) for each in (is_copy, has_rhythm & ~is_copy)
    ]
    return shares[0], shares[1]
