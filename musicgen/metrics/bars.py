"""How alike the bars of a piece are, as sets of what begins in them, and which bars return."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from musicgen.metrics.summary import mean_of_valid
from musicgen.midi import NoteArray, Score, pitched_notes

STEPS_PER_BEAT = 4
"""Grid on which bars are compared: sixteenth notes."""
ALIKE = 0.8
"""Dice's coefficient from which on a bar counts as a return of another."""
MIN_LAG = 4
"""Bars between a bar and its return, at least: what repeats sooner is a pattern."""
NUM_LAGS = 40
"""T of the similarity error."""

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Events = NDArray[np.int64]
"""A bar, from 0, and numbers that say what begins there, a row for each event: [N, 1 + columns]."""


def bars_and_steps(score: Score, notes: NoteArray) -> tuple[IntArray, IntArray]:
    """Return the bar of each note, and its onset in the bar in sixteenths. [N], [N]"""
    starts = score.bar_starts()
    bar = np.searchsorted(starts, notes["onset"], side="right") - 1
    step = np.rint((notes["onset"] - starts[bar]) * STEPS_PER_BEAT / score.ticks_per_beat)
    return bar, step.astype(np.int64)


def bar_notes(score: Score) -> Events:
    """Return bar, step, pitch and duration of the pitched notes, times in sixteenths: [N, 4]."""
    notes = pitched_notes(score)
    duration = np.rint(notes["duration"] * STEPS_PER_BEAT / score.ticks_per_beat)
    columns = (*bars_and_steps(score, notes), notes["pitch"], duration.astype(np.int64))
    return np.stack(columns, axis=1)


def join_bars(prompt: Events, num_bars: int, events: Events) -> Events:
    """Return the events of a prompt of `num_bars` and those of the music after it."""
    after = events.copy()
    after[:, 0] += num_bars
    return np.concatenate([prompt, after])


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


def similarities_by_lag(pieces: Iterable[tuple[Events, int]]) -> FloatArray:
    """Compute L_t, the mean of |A ∩ B| / |A ∪ B| over the bars of all pieces that are t bars apart.

    As in Museformer (Yu et al. 2022), where notes are equal if onset in the bar, pitch and duration
    are. Pairs of empty bars do not count.

    Args:
        pieces: events, and the first bar that counts as the later one of a pair.

    Returns:
        Of t from 1 to `NUM_LAGS`; NaN without a pair.
    """
    return _mean_by_lag(*_by_piece_and_lag(pieces))


def similarity_error(generated: FloatArray, originals: FloatArray) -> float:
    """Return Museformer's SE, the mean of |L_t − L'_t| over the lags that both have."""
    return mean_of_valid(np.abs(generated - originals))


def piece_similarity_errors(
    generated: Iterable[tuple[Events, int]], originals: Iterable[tuple[Events, int]]
) -> FloatArray:
    """Return a value for each generated piece, whose mean is the similarity error of all of them.

    The value is linear in what the piece adds to each L_t, with the sign of L_t − L'_t, as for a
    mean of absolute values of ratios (Cochran 1977, §6.4); it may be negative. [pieces]

    Args:
        generated, originals: as for `similarities_by_lag`.
    """
    sums, counts = _by_piece_and_lag(generated)
    new, old = _mean_by_lag(sums, counts), similarities_by_lag(originals)
    known = ~np.isnan(new - old)
    if not known.any():
        return np.full(len(sums), np.nan)
    new, old, sums, counts = new[known], old[known], sums[:, known], counts[:, known]
    values = new + (sums - new * counts) / counts.mean(axis=0)
    return (np.sign(new - old) * (values - old)).mean(axis=1)


def _by_piece_and_lag(pieces: Iterable[tuple[Events, int]]) -> tuple[FloatArray, FloatArray]:
    """Return the sum of the similarities of each piece at each lag, and their number. [N, T]"""
    rows = []
    for events, first in pieces:
        dice = bar_similarities(events)
        jaccard = dice / (2 - dice)
        lags = [jaccard.diagonal(-lag)[max(0, first - lag) :] for lag in range(1, NUM_LAGS + 1)]
        rows.append([(np.nansum(values), (~np.isnan(values)).sum()) for values in lags])
    found = np.array(rows, dtype=float).reshape(-1, NUM_LAGS, 2)
    return found[..., 0], found[..., 1]


def _mean_by_lag(sums: FloatArray, counts: FloatArray) -> FloatArray:
    total = counts.sum(axis=0)
    return np.divide(sums.sum(axis=0), total, out=np.full(NUM_LAGS, np.nan), where=total > 0)
