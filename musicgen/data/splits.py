"""Which pieces are for training, validation and test."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Piece:
    """One piece of a corpus.

    Attributes:
        name: what reports call it.
        path: its file, or the folder of its files.
        group: pieces of one group stay in one split.
        split: the corpus' own split, if it has one.
    """

    name: str
    path: Path
    group: str
    split: str | None = None


def split_groups(pieces: Sequence[Piece], fractions: tuple[float, float]) -> list[str]:
    """A split for each piece: its own, or the one that its group's name decides.

    A name gives each group a number in [0, 1): so a group stays where it is when the corpus grows,
    and what was trained on is never taken for held out. Only a corpus so small that a split would
    be empty moves a group: of three or more, each of training, validation and test gets one, unless
    its fraction is 0.
    """
    shares = {
        group: int.from_bytes(hashlib.blake2b(os.fsencode(group), digest_size=8).digest()) / 2**64
        for group in {piece.group for piece in pieces if piece.split is None}
    }
    val, test = fractions
    where = {
        group: "val" if share < val else "test" if share < val + test else "train"
        for group, share in shares.items()
    }
    order = sorted(shares, key=lambda group: shares[group])
    if len(order) < 3:
        where = dict.fromkeys(order, "train")
    else:
        for place, split, wanted in ((0, "val", val), (1, "test", test), (-1, "train", True)):
            if wanted and split not in where.values():
                where[order[place]] = split
    return [piece.split or where[piece.group] for piece in pieces]
