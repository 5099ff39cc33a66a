"""The split and the shard of a piece, by hashes of names."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from musicgen.data.corpora.base import Piece
from musicgen.errors import ParameterError


def _hash(name: str) -> int:
    """Hash a name to 64 bits."""
    return int.from_bytes(hashlib.blake2b(os.fsencode(name), digest_size=8).digest())


def split_groups(pieces: Sequence[Piece], fractions: tuple[float, float]) -> list[str]:
    """Return a split for each piece: its own, or the one given by a hash of its group's name.

    The hash maps a group to [0, 1). A group therefore stays where it is when the corpus grows, and
    no training piece becomes a held-out one. Only in a corpus so small that a split would be empty
    is a group moved: of three or more groups, each split gets one, unless its fraction is 0.
    """
    groups = (piece.group for piece in pieces if piece.split is None)
    shares = np.fromiter((_hash(group) / 2**64 for group in groups), float)
    val, test = fractions
    names = "val", "test", "train"
    splits = np.digitize(shares, (val, val + test))
    order = np.unique(shares)
    if len(order) < 3:
        splits[:] = names.index("train")
    else:
        for group, split, fraction in ((0, "val", val), (1, "test", test), (-1, "train", 1)):
            if fraction and names.index(split) not in splits:
                splits[shares == order[group]] = names.index(split)
    chosen = iter(splits)
    return [piece.split or names[next(chosen)] for piece in pieces]


@dataclass(frozen=True)
class Shard:
    """The `number`th of `count` parts of a corpus, from 1; a piece's name decides its part."""

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Parse a text such as `3/8`."""
        number, _, count = text.partition("/")
        if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
            expected = "expected the part and the number of parts, such as 3/8"
            raise ParameterError("shard", text, expected)
        return cls(int(number), int(count))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def contains(self, name: str) -> bool:
        """Return whether the piece of this name belongs to the part."""
        return _hash(name) % self.count == self.number - 1
