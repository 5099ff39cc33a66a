"""Structureness: how much of a piece its best repeated segment covers.

The fitness of a segment (Müller, Jiang & Grosche 2013, "A robust fitness measure for capturing
repetitions in music recordings") is high if segments similar to it cover much of the piece. The
structureness indicators of MusDr (Wu & Yang 2020) are the highest fitness among segments of some
lengths. They are measures of audio; here bars of notes are compared, so that similar segments have
the same length.

Bars are compared by harmony and rhythm, which tolerates a changed melody. `repeated_bars` asks for
the same notes.
"""

import numpy as np
from numpy.typing import NDArray

from musicgen.metrics.repeated_bars import ALIKE, Events

RANGES = {"short": (3, 8), "mid": (8, 15), "long": (15, 512)}
"""Lengths of segments in bars: the first and the last one."""
PENALTY = -2.0
"""The similarity of bars that are not alike, as in Müller et al."""

FloatArray = NDArray[np.float64]


def structureness(events: Events, num_bars: int) -> dict[str, float]:
    """Return the highest fitness of short, mid and long segments; NaN where none can repeat.

    Args:
        events: bar, step, pitch and duration of notes, see `bar_notes`.
        num_bars: of the piece.
    """
    fitness = segment_fitness(harmony_and_rhythm(events, num_bars))
    return {
        name: float(fitness[low : high + 1].max()) if 2 * low <= num_bars else np.nan
        for name, (low, high) in RANGES.items()
    }


def harmony_and_rhythm(events: Events, num_bars: int) -> FloatArray:
    """Return how similar bars are in harmony and rhythm: 0 to 1, or `PENALTY` below `ALIKE`.

    It is the mean of two cosines: of the durations of the pitch classes, and of the number of notes
    that begin on each step. Empty bars are similar to each other only. [num_bars, num_bars]
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
    """Return the cosines between all pairs of vectors; 0 with a zero vector. [N, D] -> [N, N]"""
    units = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1)
    return units @ units.T


def segment_fitness(similarities: FloatArray) -> FloatArray:
    """Return the fitness of all segments: [length, first bar], 0 where the piece is too short.

    For each segment, K segments of the same length are chosen that do not overlap, so that the sum
    σ of their similarities to it, bar by bar, is largest. With M bars in the segment and N in the
    piece, the fitness is the harmonic mean of (σ − M) / K·M and (K·M − M) / N. The segment itself
    does not count.

    Args:
        similarities: of each bar to each, 1 on the diagonal, negative if they differ. [N, N]
    """
    n = len(similarities)
    fitness = np.zeros((n + 1, n))
    score = np.zeros((n + 1, n + 1))  # of segments of `length` from each bar to each
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
