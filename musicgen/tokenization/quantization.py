"""Rounding of times and values to those of a vocabulary."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from musicgen.errors import ParameterError
from musicgen.tokenization.vocabulary import IntArray

UNMOVED = np.array([[0, 2**40]] * 2)
"""The tick map, see `relocate`, of music that is not moved."""


def to_grid(ticks: IntArray, steps_per_beat: int | IntArray, ticks_per_beat: int) -> IntArray:
    """Return the nearest grid step of each tick; halves round up."""
    return (2 * steps_per_beat * ticks + ticks_per_beat) // (2 * ticks_per_beat)


def relocate(ticks: IntArray, tick_map: IntArray) -> IntArray:
    """Return the new ticks of music that was moved.

    Args:
        tick_map: ascending old and new ticks. Between two of them the time passes evenly in
            both, or stands still in one. [2, N]
    """
    return np.interp(ticks, *tick_map).round().astype(np.int64)


def parse_bins(
    name: str, bins: Sequence[int] | None, minimum: int, maximum: int, step: int | None = None
) -> range:
    """Return bins [lowest, highest, step], or [lowest, highest] with `step`; None: no bins."""
    if bins is None:
        return range(0)
    given = list(bins) if step is None else [*bins, step]
    low, high, width = given if len(given) == 3 else (0, 0, 0)
    if width < 1 or not minimum <= low <= high <= maximum or (high - low) % width:
        content = "[lowest, highest, step]" if step is None else "[lowest, highest]"
        bounds = f"within {minimum} and {maximum}, an integer number of steps apart"
        raise ParameterError(name, list(bins), f"expected {content} {bounds}")
    return range(low, high + 1, width)


def bin_edges(bins: Sequence[int], by_ratio: bool = False) -> NDArray[np.float64]:
    """Return the values between ascending bins from which on the higher one is nearer. [N - 1]

    Args:
        by_ratio: by the ratio of a value to a bin instead of their difference.
    """
    lower, upper = np.array(bins)[:-1], np.array(bins)[1:]
    return np.sqrt(lower * upper) if by_ratio else (lower + upper) / 2


def nearest_bin(values: NDArray[Any], bins: Sequence[int], by_ratio: bool = False) -> IntArray:
    """Return the index of the nearest bin, see `bin_edges`; 0 without bins."""
    return np.searchsorted(bin_edges(bins, by_ratio), values, side="right")


def find_changes(step: IntArray, value: IntArray) -> tuple[IntArray, IntArray]:
    """Return the last value of each step where it changes; the inputs are sorted by step."""
    last = np.append(step[1:] != step[:-1], np.ones(len(step[:1]), bool))
    step, value = step[last], value[last]
    differs = np.append(np.ones(len(value[:1]), bool), value[1:] != value[:-1])
    return step[differs], value[differs]
