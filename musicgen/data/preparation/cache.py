"""The token cache: an index of the tokens of a corpus, which training reads.

The tokens themselves are in the files of the stores, once for all caches.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from musicgen.data.corpora.base import SPLITS, Piece
from musicgen.data.preparation.duplicates import SKETCH_SIZE, find_duplicates
from musicgen.data.preparation.store import StoredPiece
from musicgen.data.preparation.summary import write_report
from musicgen.errors import UserError

INDEX, NAMES, FILES = "index.npy", "names.json", "files.json"
_SKETCHES = "sketches.bin"  # while the cache is built

_INDEX_ROW = np.dtype(
    [(name, np.int32) for name in ("split", "bar_length", "tokens", "bars", "file")]
    + [("start", np.int64)]
)


class TokenCache:
    """The tokens of the usable pieces of a corpus, memory-mapped, as input of the loader.

    Attributes:
        lengths: number of tokens of each piece [num_pieces].
        bar_lengths: number of grid steps in a bar of each piece.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        index = np.load(folder / INDEX)
        self.lengths: NDArray[np.int64] = index["tokens"].astype(np.int64)
        self.bar_lengths: list[int] = index["bar_length"].tolist()
        self._splits = index["split"].astype(np.int8)
        self._num_bars, self._files = index["bars"].copy(), index["file"].copy()
        self._starts = index["start"].copy()
        self._paths = [folder.parent / name for name in json.loads((folder / FILES).read_text())]
        self._mapped: dict[int, NDArray[np.uint8]] = {}  # files that are mapped already

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenCache, (self.folder,)  # each process maps the files itself

    def is_complete(self) -> bool:
        """Return whether the files with the tokens exist."""
        return all(path.is_file() for path in self._paths)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, piece: int) -> NDArray[np.int64]:
        """Return the tokens of a piece: [L], int64."""
        return self.mapped(piece).astype(np.int64)

    def mapped(self, piece: int) -> NDArray[Any]:
        """Return the tokens of a piece, memory-mapped: [L], uint16."""
        return self._array(piece, 8 * self._num_bars[piece], np.uint16, self.lengths[piece])

    def crop_starts(self, piece: int) -> NDArray[Any]:
        """Return where crops of a piece may start: [num_bars, 2], see `Crops.starts`."""
        return self._array(piece, 0, np.int32, 2 * self._num_bars[piece]).reshape(-1, 2)

    def _array(self, piece: int, offset: int, dtype: type, size: int) -> NDArray[Any]:
        """Return an array of a piece in the file of its store (see `as_bytes`).

        Args:
            offset: bytes from the start of the piece.
            size: number of elements.
        """
        number = self._files[piece]
        if number not in self._mapped:
            self._mapped[number] = _map(self._paths[number], np.uint8, -1)
        start = self._starts[piece] + offset
        return self._mapped[number][start : start + size * np.dtype(dtype).itemsize].view(dtype)

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
        """Return the indices of the pieces of a split."""
        return np.flatnonzero(self._splits == SPLITS.index(split)).tolist()


def _map(path: Path, dtype: type, *shape: int) -> NDArray[Any]:
    """Return the content of a file, memory-mapped."""
    # As a plain array, as slicing a memmap is slow.
    return np.asarray(np.memmap(path, dtype, "r")).reshape(shape)


def build_cache(
    folder: Path,
    pieces: Sequence[Piece],
    stored: Callable[[], Iterable[StoredPiece]],
    fractions: tuple[float, float],
) -> list[str]:
    """Write a cache into a folder; return the lines of a summary.

    Args:
        folder: an empty folder.
        pieces: all pieces of the corpus.
        stored: returns the stored pieces in the same order; they are read one at a time.
        fractions: shares of validation and test pieces.

    Raises:
        UserError: no piece can be used.
    """
    files: dict[str, int] = {}
    rows = np.fromiter(_write_sketches(folder, stored(), files), _INDEX_ROW)
    usable = np.flatnonzero(rows["tokens"]).tolist()
    if not usable:
        first = next(iter(stored()), None)
        why = f"{pieces[0].path}: {first.record.skipped}" if first else "there is none"
        raise UserError(f"none of {len(pieces)} pieces can be used; the first: {why}")
    (folder / NAMES).write_text(json.dumps([pieces[i].name for i in usable]))
    (folder / FILES).write_text(json.dumps([*files]))
    # The original of a piece is the first one by name with the same music, which may be itself.
    by_name = sorted(usable, key=lambda i: pieces[i].name)
    sketches = _map(folder / _SKETCHES, np.uint64, -1, SKETCH_SIZE)
    originals = dict(zip(by_name, find_duplicates(sketches, by_name), strict=True))
    (folder / _SKETCHES).unlink()
    grouped = [replace(pieces[i], group=pieces[originals[i]].group) for i in usable]
    splits, duplicate_of = [""] * len(pieces), [""] * len(pieces)
    for i, split in zip(usable, split_groups(grouped, fractions), strict=True):
        splits[i], rows["split"][i] = split, SPLITS.index(split)
    for i, original in originals.items():
        duplicate_of[i] = pieces[original].name if original != i else ""
    np.save(folder / INDEX, rows[usable])
    return write_report(folder, (piece.record for piece in stored()), splits, duplicate_of)


def _write_sketches(
    folder: Path, stored: Iterable[StoredPiece], files: dict[str, int]
) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Write the sketches of pieces; yield a row of the index for each, with split 0.

    Args:
        files: the number of each file of arrays is added to it.
    """
    with (folder / _SKETCHES).open("wb") as sketches:
        for piece in stored:
            sketches.write(piece.sketch.tobytes())
            record, file = piece.record, 0
            if record.num_tokens:
                file = files.setdefault(piece.file, len(files))
            yield 0, record.bar_length, record.num_tokens, record.num_bars, file, piece.start


def split_groups(pieces: Sequence[Piece], fractions: tuple[float, float]) -> list[str]:
    """Return the split of each piece: the published one, or one by a hash of its group.

    The hash maps the name of a group to [0, 1). A group therefore stays in its split when the
    corpus grows, and no training piece becomes a held-out piece. In a small corpus a split may be
    empty. Then a group is moved to it, if there are at least three groups and its fraction is not
    0.

    Args:
        fractions: shares of validation and test pieces.
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
