"""Encoded pieces in a folder: a part of a preparation, or a whole cache."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from musicgen.data.duplicates import SKETCH_SIZE
from musicgen.data.encoding import Encoded, Record

RECORDS = "records.json"
TOKENS, PLACES, SKETCHES = "tokens.npy", "places.npy", "sketches.npy"


class Shelf:
    """The pieces of a folder that `write_shelf` has filled.

    Attributes:
        records: of the pieces.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records = [Record(**row) for row in json.loads((folder / RECORDS).read_text())]
        self._tokens = np.cumsum([0] + [record.num_tokens for record in self.records])
        self._places = np.cumsum([0] + [record.num_bars for record in self.records])

    def __getitem__(self, piece: int) -> Encoded:
        tokens, places, sketches = _arrays(self.folder)
        return Encoded(
            self.records[piece],
            tokens[self._tokens[piece] : self._tokens[piece + 1]],
            places[self._places[piece] : self._places[piece + 1]],
            sketches[piece],
        )


# Not all shelves of a large preparation at once: each takes three open files.
@lru_cache(maxsize=64)
def _arrays(folder: Path) -> tuple[NDArray[Any], ...]:
    return tuple(open_array(folder / name) for name in (TOKENS, PLACES, SKETCHES))


def open_array(path: Path) -> NDArray[Any]:
    """An array of a file, memory-mapped."""
    try:
        # As a plain array: a slice of a memmap takes its time.
        return np.asarray(np.load(path, mmap_mode="r"))
    except ValueError:  # nothing cannot be mapped
        return np.load(path)


def write_shelf(folder: Path, records: Sequence[Record], pieces: Iterable[Encoded]) -> None:
    """Fill a folder with pieces, one after the other, without holding them all.

    Args:
        folder: is there, and empty.
        records: those of the pieces.
    """
    num_tokens = sum(record.num_tokens for record in records)
    num_bars = sum(record.num_bars for record in records)
    with (
        _open(folder / TOKENS, np.uint16, (num_tokens,)) as tokens,
        _open(folder / PLACES, np.int32, (num_bars, 2)) as places,
        _open(folder / SKETCHES, np.uint64, (len(records), SKETCH_SIZE)) as sketches,
    ):
        for piece in pieces:
            tokens.write(piece.tokens.tobytes())
            places.write(piece.places.tobytes())
            sketches.write(piece.sketch.tobytes())
    (folder / RECORDS).write_text(json.dumps([asdict(record) for record in records]))


@contextmanager
def _open(path: Path, dtype: type, shape: tuple[int, ...]) -> Iterator[Any]:
    """A file that holds the header of an array, to write its content behind it."""
    header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        yield file


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder beside `path`, named `.new-…`, that becomes `path` on success.

    Where `path` has appeared meanwhile, it stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not by `tempfile`, whose folders no other user may read.
    temporary = path.parent / f".new-{uuid.uuid4().hex}"
    temporary.mkdir()
    try:
        yield temporary
        try:
            temporary.rename(path)
        except OSError:
            if not path.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Remove what an `atomic_folder` of a killed process left in a folder."""
    for path in folder.glob(".new-*"):
        shutil.rmtree(path, ignore_errors=True)
