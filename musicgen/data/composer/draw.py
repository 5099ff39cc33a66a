"""Random draws that depend on nothing but their key: no global state, no salted hashes."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TypeVar

import numpy as np

T = TypeVar("T")


def generator(*key: int | str) -> np.random.Generator:
    """A generator of its own for every key; words count by their CRC-32, which never changes."""
    return np.random.default_rng(
        [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in key]
    )


def pick(rng: np.random.Generator, options: Mapping[T, float] | Sequence[T]) -> T:
    """One of the options: evenly from a sequence, by weight from a mapping."""
    if not isinstance(options, Mapping):
        return options[int(rng.random() * len(options))]
    heights = list(accumulate(options.values()))
    level = rng.random() * heights[-1]
    return next(option for option, height in zip(options, heights, strict=True) if level < height)


def chance(rng: np.random.Generator, probability: float) -> bool:
    return bool(rng.random() < probability)
