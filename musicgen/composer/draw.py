"""Random draws that depend on a key only, without global state."""

import zlib
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TypeVar

import numpy as np

T = TypeVar("T")


def generator(*key: int | str) -> np.random.Generator:
    """Return a random generator that is a function of the key; strings are hashed by CRC-32."""
    return np.random.default_rng(
        [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in key]
    )


def pick(rng: np.random.Generator, options: Mapping[T, float] | Sequence[T]) -> T:
    """Return a random option: uniformly from a sequence, by weight from a mapping."""
    if not isinstance(options, Mapping):
        return options[int(rng.random() * len(options))]
    totals = list(accumulate(options.values()))
    level = rng.random() * totals[-1]
    return next(option for option, total in zip(options, totals, strict=True) if level < total)


def chance(rng: np.random.Generator, probability: float) -> bool:
    """Return true with this probability."""
    return bool(rng.random() < probability)
