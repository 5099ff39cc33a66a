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

from musicgen.data.preparation.duplicates import SKETCH_SIZE
from musicgen.data.preparation.encoding import EncodedPiece, PieceRecord
from musicgen.tokenization.base import EncodingSummary

RECORDS = "records.json"
TOKENS, CROP_STARTS, SKETCHES = "tokens.npy", "crop_starts.npy", "sketches.npy"


class PieceStore:
    """The pieces in a folder written by `write_piece_store`, each with a record."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records = [
            PieceRecord(**(row | {"encoding": EncodingSummary(**row["encoding"])}))
            for row in json.loads((folder / RECORDS).read_text())
        ]
        self._token_offsets = np.cumsum([0] + [record.num_tokens for record in self.records])
        self._bar_offsets = np.cumsum([0] + [record.num_bars for record in self.records])

    def __getitem__(self, piece: int) -> EncodedPiece:
        tokens, crop_starts, sketches = open_arrays(self.folder)
        return EncodedPiece(
            self.records[piece],
            tokens[self._token_offsets[piece] : self._token_offsets[piece + 1]],
            crop_starts[self._bar_offsets[piece] : self._bar_offsets[piece + 1]],
            sketches[piece],
        )


# Bounded, since each store takes three open files.
@lru_cache(maxsize=64)
def open_arrays(folder: Path) -> tuple[NDArray[Any], ...]:
    """Return the tokens, crop starts and sketches of a store, memory-mapped."""
    arrays = []
    for path in (folder / name for name in (TOKENS, CROP_STARTS, SKETCHES)):
        try:
            # As a plain array, since slicing a memmap is slow.
            arrays.append(np.asarray(np.load(path, mmap_mode="r")))
        except ValueError:  # an empty file cannot be mapped
            arrays.append(np.load(path))
    return tuple(arrays)


def write_piece_store(
    folder: Path, records: Sequence[PieceRecord], pieces: Iterable[EncodedPiece]
) -> None:
    """Fill an empty folder with pieces, one at a time; `records` are those of the pieces."""
    num_tokens = sum(record.num_tokens for record in records)
    num_bars = sum(record.num_bars for record in records)
    with (
        _array_file(folder / TOKENS, np.uint16, (num_tokens,)) as tokens,
        _array_file(folder / CROP_STARTS, np.int32, (num_bars, 2)) as crop_starts,
        _array_file(folder / SKETCHES, np.uint64, (len(records), SKETCH_SIZE)) as sketches,
    ):
        for piece in pieces:
            tokens.write(piece.tokens.tobytes())
            crop_starts.write(piece.crop_starts.tobytes())
            sketches.write(piece.sketch.tobytes())
    (folder / RECORDS).write_text(json.dumps([asdict(record) for record in records]))


@contextmanager
def _array_file(path: Path, dtype: type, shape: tuple[int, ...]) -> Iterator[Any]:
    """Open a file with the header of an array, to append its content."""
    header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        yield file


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder, named `.new-…`, and rename it to `path` on success.

    An existing `path` is kept.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not by `tempfile`, whose folders other users cannot read.
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
