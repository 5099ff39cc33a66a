"""Encoded pieces in a folder: a part of a preparation, or a whole cache."""

from __future__ import annotations

import json
import shutil
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from musicgen.console import log
from musicgen.data.preparation.duplicates import SKETCH_SIZE
from musicgen.data.preparation.encoding import EncodedPiece, PieceRecord
from musicgen.tokenization.base import EncodingSummary

RECORDS = "records.json"
CHECKSUMS = "checksums.json"  # CRC-32 of the files that are read
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


def write_checksums(folder: Path) -> None:
    """Write the checksums of the files in a folder, see `find_damage`."""
    read = (path for path in sorted(folder.iterdir()) if path.suffix in (".json", ".npy"))
    sums = {path.name: _checksum(path) for path in read}
    (folder / CHECKSUMS).write_text(json.dumps(sums))


def find_damage(folder: Path) -> str | None:
    """Return the name of a file of a store that was changed or cut since it was written, or None.

    Stores of earlier versions have no checksums; only their sizes are compared.
    """
    name = CHECKSUMS
    try:
        if (folder / CHECKSUMS).exists():
            for name, checksum in json.loads((folder / CHECKSUMS).read_bytes()).items():
                if _checksum(folder / name) != checksum:
                    return name
            return None
        for name in (path.name for path in folder.glob("*.json")):
            json.loads((folder / name).read_bytes())
        name = RECORDS
        store = PieceStore(folder)
        name = TOKENS
        tokens, crop_starts, sketches = open_arrays(folder)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return name
    expected = store._token_offsets[-1], store._bar_offsets[-1], len(store.records)
    return None if (len(tokens), len(crop_starts), len(sketches)) == expected else TOKENS


def remove_damaged(folder: Path) -> bool:
    """Remove a store that is damaged, say so, and return whether it was."""
    damaged = find_damage(folder)
    if damaged is None:
        return False
    log(f"{folder / damaged}: damaged since it was written; its pieces are encoded again")
    with suppress(OSError):
        # Renamed first, so that it disappears atomically.
        hidden = folder.rename(folder.with_name(f".new-{uuid.uuid4().hex}"))
        shutil.rmtree(hidden, ignore_errors=True)
    open_arrays.cache_clear()
    return True


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            checksum = zlib.crc32(block, checksum)
    return checksum


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
