"""Repetition in a piece: bars that are like an earlier bar, and structureness.

Structureness is how much of a piece is covered by its best repeated segment. The fitness of a
segment (Müller, Jiang & Grosche 2013, "A robust fitness measure for capturing repetitions in music
recordings") is high if similar segments cover much of the piece. The structureness indicators of
MusDr (Wu & Yang 2020) are the highest fitness among segments of some lengths. These measures are
for audio. Here bars of notes are compared, so that similar segments have the same length.

Repeated bars have the same notes. For structureness, bars are compared by harmony and rhythm, so
that a changed melody does not matter much.
"""

import numpy as np
from numpy.typing import NDArray

from musicgen.metrics.intervals import mean_of_valid
from musicgen.midi import Score, pitched_notes
from musicgen.midi.score import FloatArray, IntArray

STEPS_PER_BEAT = 4
"""Grid on which bars are compared: sixteenth notes."""
ALIKE = 0.8
"""Bars with this Dice coefficient or a higher one count as alike."""
MIN_LAG = 4
"""Smallest distance in bars of a repetition. A bar that repeats sooner is part of a pattern."""
RANGES = {"short": (3, 8), "mid": (8, 15), "long": (15, 512)}
"""Shortest and longest length in bars of the segments of structureness."""
PENALTY = -2.0
"""Similarity of bars that are not alike, as in Müller et al."""

BoolArray = NDArray[np.bool_]
Events = IntArray
"""A row per note: its bar, from 0, and the numbers to compare notes by: [N, C]."""


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
    return 2 * (present @ present.T) / np.where(sizes > 0, sizes, np.nan)


def repeated_bar_share(similarities: FloatArray, first: int = 0) -> float:
    """Return the share of bars that repeat a bar at least `MIN_LAG` bars earlier.

    Empty bars are not counted. The share is NaN if all bars are empty.

    Args:
        similarities: what `bar_similarities` returned.
        first: first bar to count. Bars before it, such as those of a prompt, can be repeated.
    """
    _, is_repeated = new_and_repeated_bars(similarities)
    filled = ~np.isnan(similarities.diagonal())
    return mean_of_valid(is_repeated[first:][filled[first:]])


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
    shares = [mean_of_valid(each[filled]) for each in (is_copy, has_rhythm & ~is_copy)]
    return shares[0], shares[1]


def structureness(events: Events, num_bars: int) -> dict[str, float]:
    """Return the highest fitness of short, mid and long segments, by these names.

    It is NaN where the piece is too short for a repetition.

    Args:
        events: bar, step, pitch and duration of notes, see `bar_notes`.
        num_bars: number of bars of the piece.
    """
    fitness = segment_fitness(harmony_and_rhythm(events, num_bars))
    return {
        name: float(fitness[low : high + 1].max()) if 2 * low <= num_bars else np.nan
        for name, (low, high) in RANGES.items()
    }


def harmony_and_rhythm(events: Events, num_bars: int) -> FloatArray:
    """Return the similarity of bars in harmony and rhythm: [num_bars, num_bars].

    It is the mean of two cosines: of the durations of the pitch classes, and of the numbers of
    notes that begin on each step. Below `ALIKE`, it is `PENALTY`. Empty bars are similar only to
    each other.
    """
    bar, step, pitch, duration = events.T
    chroma = np.zeros((num_bars, 12))
    onsets = np.zeros((num_bars, step.max(initial=0) + 1))
    np.add.at(chroma, (bar, pitch % 12), np.maximum(duration, 1))
    np.add.at(onsets, (bar, step), 1)
    similarities = (_cosines(chroma) + _cosines(onsets)) / 2
    empty = ~onsets.any(axis=1)
    similarities[np.ix_(empty, empty)] = 1
    return np.where(similarities >= ALIKE, similarities, PENALTY)


def _cosines(vectors: FloatArray) -> FloatArray:
    """Return the cosines of all pairs of vectors, 0 for a zero vector: [N, D] -> [N, N]."""
    units = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1)
    return units @ units.T


def segment_fitness(similarities: FloatArray) -> FloatArray:
    """Return the fitness of all segments, [N + 1, N], by length and first bar.

    Per segment, K segments of the same length are chosen that do not overlap, so that the sum σ of
    their similarities to it, bar by bar, is largest. With M bars in the segment and N in the
    piece, the fitness is the harmonic mean of (σ − M) / K·M and (K·M − M) / N. The segment itself
    is not counted. The fitness is 0 where the piece is too short.

    Args:
        similarities: similarity of each pair of bars [N, N]: 1 on the diagonal, negative if bars
            are not alike.
    """
    n = len(similarities)
    fitness = np.zeros((n + 1, n))
    # Similarity of the segments of `length` that begin at each pair of bars.
    score = np.zeros((n + 1, n + 1))
    for length in range(1, n + 1):
        count = n - length + 1
        score = score[:count, :count] + similarities[length - 1 :, length - 1 :]
        best, chosen = np.zeros((n + 1, count)), np.zeros((n + 1, count))  # up to each bar
        for end in range(length, n + 1):
            taken = best[end - length] + score[end - length]
            better = taken > best[end - 1]
            best[end] = np.where(better, taken, best[end - 1])
            chosen[end] = np.where(better, chosen[end - length] + 1, chosen[end - 1])
        sigma = (best[-1] - length) / (length * np.maximum(1, chosen[-1]))
        covered = (chosen[-1] - 1) * length / n
        product, total = 2 * sigma * covered, sigma + covered
        good = (sigma > 0) & (covered > 0)
        fitness[length, :count] = np.divide(product, total, out=np.zeros(count), where=good)
    return fitness
