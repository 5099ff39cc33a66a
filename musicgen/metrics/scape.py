"""Structureness: how well a part of a piece stands for all of it, because it returns.

The fitness of a segment (Müller, Jiang & Grosche 2013, "A robust fitness measure for capturing
repetitions in music recordings") is high if segments like it cover much of the piece. MusDr's
structureness indicators (Wu & Yang 2020) are the highest fitness of segments of some lengths, of
audio; here bars of notes are compared, so that segments that are alike are equally long.
"""

import numpy as np
from numpy.typing import NDArray

from musicgen.metrics.bars import ALIKE, Events

RANGES = {"short": (3, 8), "mid": (8, 15), "long": (15, 512)}
"""Lengths of segments in bars, from and to, both included."""
PENALTY = -2.0
"""The similarity of bars that are not alike, as of Müller et al."""

FloatArray = NDArray[np.float64]


def structureness(events: Events, num_bars: int) -> dict[str, float]:
    """Return the highest fitness of short, mid and long segments; NaN where none can return.

    Args:
        events: bar, step, pitch and duration of notes, see `musicgen.metrics.bars.bar_notes`.
        num_bars: of the piece.
    """
    fitness = fitness_scape(bar_likeness(events, num_bars))
    return {
        name: float(fitness[low : high + 1].max()) if 2 * low <= num_bars else np.nan
        for name, (low, high) in RANGES.items()
    }


def bar_likeness(events: Events, num_bars: int) -> FloatArray:
    """Return how alike bars are in harmony and rhythm, 0 to 1, and `PENALTY` below `ALIKE`.

    It is the mean of two cosines: of the durations of the pitch classes, and of the notes that
    begin on each step. Empty bars are like each other alone. [num_bars, num_bars]
    """
    bar, step, pitch, duration = events.T
    chroma, onsets = np.zeros((num_bars, 12)), np.zeros((num_bars, step.max(initial=0) + 1))
    np.add.at(chroma, (bar, pitch % 12), np.maximum(duration, 1))
    np.add.at(onsets, (bar, step), 1)
    units = [x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1) for x in (chroma, onsets)]
    alike = sum(unit @ unit.T for unit in units) / 2
    empty = ~onsets.any(axis=1)
    alike[np.ix_(empty, empty)] = 1
    return np.where(alike >= ALIKE, alike, PENALTY)


def fitness_scape(similarities: FloatArray) -> FloatArray:
    """Compute the fitness of all segments: [length, first bar], 0 where the piece ends before.

    For each segment, segments as long that do not overlap are chosen so that the sum σ of their
    similarities to it, bar by bar, is largest. With M bars in the segment and N in the piece, of
    which K·M are chosen, the fitness is the harmonic mean of (σ − M) / K·M and (K·M − M) / N: the
    segment itself does not count.

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
