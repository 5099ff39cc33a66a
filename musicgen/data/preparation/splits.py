"""The split of a piece, by a hash of its group's name."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

import numpy as np

from musicgen.data.corpora.base import Piece


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
