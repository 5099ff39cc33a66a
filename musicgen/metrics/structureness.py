"""Structureness: how much of a piece is covered by its best repeated segment.

The fitness of a segment (Müller, Jiang & Grosche 2013, "A robust fitness measure for capturing
repetitions in music recordings") is high if similar segments cover much of the piece. The
structureness indicators of MusDr (Wu & Yang 2020) are the highest fitness among segments of some
lengths. These measures are for audio. Here bars of notes are compared, so that similar segments
have the same length.

Bars are compared by harmony and rhythm, so that a changed melody does not matter much. In contrast,
`repeated_bars` compares notes.
"""

import numpy as np
from numpy.typing import NDArray

from musicgen.metrics.repeated_bars import ALIKE, Events

RANGES = {"short": (3, 8), "mid": (8, 15), "long": (15, 512)}
"""Shortest and longest length of segments in bars."""
PENALTY = -2.0
"""Similarity of bars that are not alike, as in Müller et al."""

FloatArray = NDArray[np.float64]


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

    For each segment, K segments of the same length are chosen that do not overlap, so that the sum
    σ of their similarities to it, bar by bar, is largest. With M bars in the segment and N in the
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
