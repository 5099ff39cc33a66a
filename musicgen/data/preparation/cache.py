"""The cache: the tokens of a corpus on disk, in the form that training reads."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from musicgen.data.corpora.base import SPLITS, Piece
from musicgen.data.preparation.duplicates import SKETCH_SIZE, find_duplicates
from musicgen.data.preparation.encoding import EncodedPiece, PieceRecord
from musicgen.data.preparation.summary import write_report
from musicgen.errors import UserError

INDEX, NAMES = "index.npy", "names.json"
TOKENS, CROP_STARTS = "tokens.bin", "crop_starts.bin"  # raw bytes
_SKETCHES = "sketches.bin"  # while the cache is built

_INDEX_ROW = np.dtype([(name, np.int32) for name in ("split", "bar_length", "tokens", "bars")])


class TokenCache:
    """The tokens of a corpus, the input of the loader: its kept pieces, memory-mapped.

    Attributes:
        lengths: numbers of tokens. [num_pieces]
        bar_lengths: grid steps in a bar of each piece.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        index = np.load(folder / INDEX)
        self.lengths: NDArray[np.int64] = index["tokens"].astype(np.int64)
        self.bar_lengths: list[int] = index["bar_length"].tolist()
        self._splits = index["split"].astype(np.int8)
        self._token_offsets = np.append(0, np.cumsum(self.lengths))
        self._bar_offsets = np.append(0, np.cumsum(index["bars"], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, piece: int) -> NDArray[np.int64]:
        """Read the tokens of one piece. [L]."""
        return self.mapped(piece).astype(np.int64)

    def mapped(self, piece: int) -> NDArray[Any]:
        """Return the tokens of one piece without reading them. [L]."""
        tokens = _open_arrays(self.folder)[0]
        return tokens[self._token_offsets[piece] : self._token_offsets[piece + 1]]

    def crop_starts(self, piece: int) -> NDArray[Any]:
        """Return the starts of a piece's crops, see `Crops.starts`. [num_bars, 2]."""
        crop_starts = _open_arrays(self.folder)[1]
        return crop_starts[self._bar_offsets[piece] : self._bar_offsets[piece + 1]]

    @cached_property
    def names(self) -> list[str]:
        """The names of the pieces, read on first use."""
        names: list[str] = json.loads((self.folder / NAMES).read_text())
        return names

    @property
    def splits(self) -> list[str]:
        """The split of each piece."""
        return [SPLITS[split] for split in self._splits]

    def pieces(self, split: str) -> list[int]:
        """Return the indices of a split's pieces."""
        return np.flatnonzero(self._splits == SPLITS.index(split)).tolist()


@lru_cache(maxsize=64)
def _open_arrays(folder: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the tokens and crop starts of a cache, memory-mapped."""
    return _map(folder / TOKENS, np.uint16, -1), _map(folder / CROP_STARTS, np.int32, -1, 2)


def _map(path: Path, dtype: type, *shape: int) -> NDArray[Any]:
    # As a plain array, since slicing a memmap is slow.
    return np.asarray(np.memmap(path, dtype, "r")).reshape(shape)


def build_cache(
    folder: Path,
    pieces: Sequence[Piece],
    encoded: Iterable[EncodedPiece],
    records: Callable[[], Iterable[PieceRecord]],
    fractions: tuple[float, float],
) -> list[str]:
    """Fill a folder with a cache, the same bytes for the same pieces; return lines of a summary.

    Args:
        encoded: of each piece; read one at a time.
        records: returns those of `encoded`.

    Raises:
        UserError: no piece can be used.
    """
    rows = np.fromiter(_write_arrays(folder, encoded), _INDEX_ROW)
    kept = np.flatnonzero(rows["tokens"]).tolist()
    if not kept:
        first = next(iter(records()), None)
        why = f"{pieces[0].path}: {first.skipped}" if first else "there is none"
        raise UserError(f"none of {len(pieces)} pieces can be used; the first: {why}")
    (folder / NAMES).write_text(json.dumps([pieces[i].name for i in kept]))
    # The original of a piece is the first one, by name, with the same music; it may be itself.
    by_name = sorted(kept, key=lambda i: pieces[i].name)
    sketches = _map(folder / _SKETCHES, np.uint64, -1, SKETCH_SIZE)
    originals = dict(zip(by_name, find_duplicates(sketches, by_name), strict=True))
    (folder / _SKETCHES).unlink()
    grouped = [replace(pieces[i], group=pieces[originals[i]].group) for i in kept]
    splits, duplicate_of = [""] * len(pieces), [""] * len(pieces)
    for i, split in zip(kept, split_groups(grouped, fractions), strict=True):
        splits[i], rows["split"][i] = split, SPLITS.index(split)
    for i, original in originals.items():
        duplicate_of[i] = pieces[original].name if original != i else ""
    np.save(folder / INDEX, rows[kept])
    return write_report(folder, records(), splits, duplicate_of)


def _write_arrays(
    folder: Path, encoded: Iterable[EncodedPiece]
) -> Iterator[tuple[int, int, int, int]]:
    """Write the arrays of pieces, one at a time; yield a row of the index for each, split 0."""
    with (
        (folder / TOKENS).open("wb") as tokens,
        (folder / CROP_STARTS).open("wb") as crop_starts,
        (folder / _SKETCHES).open("wb") as sketches,
    ):
        for piece in encoded:
            tokens.write(piece.tokens.tobytes())
            crop_starts.write(piece.crop_starts.tobytes())
            sketches.write(piece.sketch.tobytes())
            yield 0, piece.record.bar_length, piece.record.num_tokens, piece.record.num_bars


def split_groups(pieces: Sequence[Piece], fractions: tuple[float, float]) -> list[str]:
    """Return a split for each piece: its own, or the one given by a hash of its group's name.

    The hash maps a group to [0, 1). A group therefore stays where it is when the corpus grows, and
    no training piece becomes a held-out one. Only in a corpus so small that a split would be empty
    is a group moved: of three or more groups, each split gets one, unless its fraction is 0.
    """
    groups = (os.fsencode(piece.group) for piece in pieces if piece.split is None)
    hashes = (hashlib.blake2b(group, digest_size=8).digest() for group in groups)
    shares = np.fromiter((int.from_bytes(each) / 2**64 for each in hashes), float)
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
