"""Played rhythm: onsets and ends of a performance, at the values that printed music has."""

import numpy as np

from musicgen.midi import Score
from musicgen.tokenization.quantization import to_grid
from musicgen.tokenization.vocabulary import IntArray

_SIXTEENTHS, _TRIPLETS, _FINEST = 4, 3, 24  # grids: steps per beat
_ADDED = 12  # the grid of notes that a model has added
_COSTS = {_SIXTEENTHS: 1, _TRIPLETS: 2, _FINEST: 20}
"""The grid of a beat is the one with the smallest sum of distances, times these."""


def printed_rhythm(score: Score) -> Score:
    """Return a played score with its onsets and ends at sixteenths, or at thirds of a beat.

    A beat has thirds if its onsets are twice as near to them as to sixteenths.

    A score stays as it is if half of its notes end at twelfths of a beat: it was printed. If two
    thirds of the onsets are at sixteenths or thirds, it was printed and only its notes were
    shortened: onsets at other 24ths stay, such as those of 3 against 2. From the tick on from which
    all notes end at twelfths, a model has added them: they stay, and do not count.
    """
    beat, onset = score.ticks_per_beat, score.notes["onset"]
    end = onset + score.notes["duration"]

    def nearest(ticks: IntArray, per_beat: int | IntArray) -> IntArray:
        return to_grid(ticks, per_beat, beat) * beat // per_beat

    off_twelfths = nearest(end, _ADDED) != end
    last = end[off_twelfths].max(initial=0)
    played = onset < last
    if 2 * np.count_nonzero(off_twelfths) <= np.count_nonzero(played):
        return score
    grids = [_SIXTEENTHS, _TRIPLETS, _FINEST]
    distances = [np.abs(nearest(onset, grid) - onset) for grid in grids]
    coarse = np.minimum(distances[0], distances[1])[played]
    is_exact = 200 * coarse < beat  # a 200th of a beat: more than a rounded tick
    if 3 * np.count_nonzero(is_exact) < 2 * len(is_exact):
        grids = grids[:2]
    num_beats = end.max() // beat + 2
    costs = [
        _COSTS[grid] * np.bincount(onset // beat, distance, num_beats)
        for grid, distance in zip(grids, distances, strict=False)
    ]
    grid_of_beat = np.array(grids)[np.argmin(costs, axis=0)]  # sixteenths without onsets
    grid_of_beat[last // beat + 1 :] = _ADDED

    found = score.moved(
        lambda ticks: nearest(ticks, grid_of_beat[ticks // beat]),
        lambda ticks: ticks,
    )
    for track in found.tracks:
        step = beat // grid_of_beat[track.notes["onset"] // beat]
        track.notes["duration"] = np.maximum(track.notes["duration"], step)
    if (200 * np.abs(found.notes["onset"] - onset) >= beat).any():
        found.repairs = [*found.repairs, "played rhythm read as sixteenths and triplets"]
    return found
