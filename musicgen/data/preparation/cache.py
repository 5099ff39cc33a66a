"""The cache: encoded pieces on disk, found by their name and content.

    remi-1f0c…/             what was encoded with the same settings, by their hash
        3ab9…/              a finished `TokenCache`: its pieces, index, report.csv, summary.txt
        parts/1-of-1/…/     `PieceStore`s of a preparation that is running or was stopped
        files.json          sizes and times of files, and their content digests

Folders appear atomically, by renaming. Locks only keep processes from doing the same work twice.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from musicgen.console import log
from musicgen.data.corpora.base import Piece
from musicgen.data.preparation.duplicates import SKETCH_SIZE, find_duplicates
from musicgen.data.preparation.encoding import EncodedPiece, PieceRecord
from musicgen.data.preparation.splits import split_groups
from musicgen.data.preparation.summary import SUMMARY, summarise, write_table
from musicgen.errors import UserError
from musicgen.files import write_text
from musicgen.tokenization.base import EncodingSummary

INDEX = "index.json"
_RECORDS, _FILES = "records.json", "files.json"
TOKENS, CROP_STARTS, SKETCHES = "tokens.bin", "crop_starts.bin", "sketches.bin"  # raw bytes
# Finished parts; the names of those being written or removed begin with a dot.
_PARTS = "parts/*/[!.]*"

FileTable = dict[str, list[str]]
"""Path of a piece to the signature of its files and their content digest."""

EncodedPieces = dict[str, tuple["PieceStore", int]]
"""Digest of a piece to the store that contains it, and its index there."""


class PieceStore:
    """The pieces in a folder written by `write_pieces`, each with a record."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records = [
            PieceRecord(**(row | {"encoding": EncodingSummary(**row["encoding"])}))
            for row in json.loads((folder / _RECORDS).read_text())
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


class TokenCache:
    """The tokens of a corpus, the input of the loader: its kept pieces, memory-mapped.

    Attributes:
        names, splits, bar_lengths: one of each per piece.
        lengths: numbers of tokens. [num_pieces]
    """

    def __init__(self, folder: Path) -> None:
        index = json.loads((folder / INDEX).read_text())
        self.folder = folder
        self.names: list[str] = index["names"]
        self.splits: list[str] = index["splits"]
        self.bar_lengths: list[int] = index["bar_lengths"]
        self.lengths: NDArray[np.int64] = np.array(index["num_tokens"], dtype=np.int64)
        self._token_offsets = np.append(0, np.cumsum(self.lengths))
        self._bar_offsets = np.append(0, np.cumsum(index["num_bars"])).astype(np.int64)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, piece: int) -> NDArray[np.int64]:
        """Read the tokens of one piece. [L]."""
        return self.mapped(piece).astype(np.int64)

    def mapped(self, piece: int) -> NDArray[Any]:
        """Return the tokens of one piece without reading them. [L]."""
        tokens = open_arrays(self.folder)[0]
        return tokens[self._token_offsets[piece] : self._token_offsets[piece + 1]]

    def crop_starts(self, piece: int) -> NDArray[Any]:
        """Return the starts of a piece's crops, see `Tokenizer.crop_starts`. [num_bars, 2]."""
        crop_starts = open_arrays(self.folder)[1]
        return crop_starts[self._bar_offsets[piece] : self._bar_offsets[piece + 1]]

    def pieces(self, split: str) -> list[int]:
        """Return the indices of a split's pieces."""
        return [i for i, name in enumerate(self.splits) if name == split]


# Bounded, since each store takes three open files.
@lru_cache(maxsize=64)
def open_arrays(folder: Path) -> tuple[NDArray[Any], ...]:
    """Return the tokens, crop starts and sketches of a store, memory-mapped."""
    return (
        _map(folder / TOKENS, np.uint16, -1),
        _map(folder / CROP_STARTS, np.int32, -1, 2),
        _map(folder / SKETCHES, np.uint64, -1, SKETCH_SIZE),
    )


def _map(path: Path, dtype: type, *shape: int) -> NDArray[Any]:
    # As a plain array, since slicing a memmap is slow. An empty file cannot be mapped.
    array = np.memmap(path, dtype, "r") if path.stat().st_size else np.empty(0, dtype)
    return np.asarray(array).reshape(shape)


def write_pieces(folder: Path, pieces: Iterable[EncodedPiece]) -> None:
    """Write pieces, one at a time, and their records to an empty folder."""
    records = []
    with (
        (folder / TOKENS).open("wb") as tokens,
        (folder / CROP_STARTS).open("wb") as crop_starts,
        (folder / SKETCHES).open("wb") as sketches,
    ):
        for piece in pieces:
            records.append(asdict(piece.record))
            tokens.write(piece.tokens.tobytes())
            crop_starts.write(piece.crop_starts.tobytes())
            sketches.write(piece.sketch.tobytes())
    (folder / _RECORDS).write_text(json.dumps(records))


def _remove(folder: Path) -> None:
    """Remove a folder atomically: under a hidden name at first."""
    with suppress(OSError):
        hidden = folder.rename(folder.with_name(f".new-{uuid.uuid4().hex}"))
        shutil.rmtree(hidden, ignore_errors=True)


def build_cache(
    folder: Path,
    pieces: Sequence[Piece],
    sources: Sequence[tuple[PieceStore, int]],
    fractions: tuple[float, float],
) -> None:
    """Fill a folder with a cache: the same bytes for the same pieces, whatever their sources.

    Args:
        sources: the store of each encoded piece, and its index there.

    Raises:
        UserError: no piece can be used.
    """
    records = [store.records[index] for store, index in sources]
    kept = [i for i, record in enumerate(records) if not record.skipped]
    if not kept:
        first = f"{pieces[0].path}: {records[0].skipped}" if records else "there is none"
        raise UserError(f"none of {len(pieces)} pieces can be used; the first: {first}")
    write_pieces(folder, (store[index] for store, index in sources))
    sketches = np.fromfile(folder / SKETCHES, np.uint64).reshape(-1, SKETCH_SIZE)
    # The original is the first piece, by name, of the same music.
    by_name = sorted(kept, key=lambda i: pieces[i].name)
    first_of = find_duplicates(sketches[by_name])
    originals = {i: by_name[j] for i, j in zip(by_name, first_of, strict=True) if i != by_name[j]}
    grouped = [replace(pieces[i], group=pieces[originals.get(i, i)].group) for i in kept]
    split_of = dict(zip(kept, split_groups(grouped, fractions), strict=True))
    index = {
        "names": [records[i].name for i in kept],
        "splits": list(split_of.values()),
        "bar_lengths": [records[i].bar_length for i in kept],
        "num_tokens": [records[i].num_tokens for i in kept],
        "num_bars": [records[i].num_bars for i in kept],
    }
    (folder / INDEX).write_text(json.dumps(index))

    splits = [split_of.get(i, "") for i in range(len(records))]
    names = {i: records[original].name for i, original in originals.items()}
    duplicate_of = [names.get(i, "") for i in range(len(records))]
    write_table(folder, records, splits, duplicate_of)
    summary = summarise(records, splits, duplicate_of)
    (folder / SUMMARY).write_text(summary + "\n", encoding="utf-8", errors="surrogateescape")


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


class CacheStore:
    """The folder of everything encoded with the same settings, shared by all processes.

    Args:
        cache_dir: folder of all token caches.
        name: name of the tokenizer.
        settings: plain data: everything that affects the encoding of a piece.
    """

    def __init__(self, cache_dir: Path, name: str, settings: Mapping[str, Any]) -> None:
        text = json.dumps(settings, sort_keys=True, indent=1)
        digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        self.folder = cache_dir / f"{name}-{digest}"

    def find_encoded(
        self, to_retry: Callable[[PieceRecord], bool]
    ) -> tuple[EncodedPieces, FileTable]:
        """Find all encoded pieces and their files; prefer results that are not to be retried."""
        finished = sorted(self.folder.glob(f"[!.]*/{_RECORDS}"))
        pieces: EncodedPieces = {}
        for path in [*finished, *sorted(self.folder.glob(f"{_PARTS}/{_RECORDS}"))]:
            with suppress(FileNotFoundError):  # removed by a process without locks
                store = PieceStore(path.parent)
                for index, record in enumerate(store.records):
                    other = pieces.get(record.digest)
                    if other is None or to_retry(other[0].records[other[1]]):
                        pieces[record.digest] = store, index
        files = self.finished_files()
        for path in self.folder.glob(f"{_PARTS}/{_FILES}"):
            files |= _load(path)
        return pieces, files

    def finished_files(self) -> FileTable:
        """Return the files of finished caches."""
        return _load(self.folder / _FILES)

    def remove_parts(self, paths: set[str]) -> None:
        """Remove the parts that contain no other pieces than those of these paths."""
        for file in list(self.folder.glob(f"{_PARTS}/{_FILES}")):
            if _load(file).keys() <= paths:
                _remove(file.parent)

    def add_finished_files(self, files: FileTable) -> None:
        write_text(self.folder / _FILES, json.dumps(self.finished_files() | files))

    @contextmanager
    def lock(self, subfolder: str = "") -> Iterator[Path]:
        """Yield a folder, and keep other processes from working there.

        The system releases the lock of a killed process, whose temporary folders are removed.
        """
        folder = self.folder / subfolder
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        try:
            lock.acquire(blocking=False)
        except Timeout:
            log(f"another process is working in {folder}: waiting for it")
            lock.acquire()
        except (NotImplementedError, OSError):  # a file system without locks
            pass  # all processes do the work, with the same result
        try:
            if lock.is_locked:
                for path in folder.glob(".new-*"):
                    shutil.rmtree(path, ignore_errors=True)
            yield folder
        finally:
            lock.release()


def write_part(folder: Path, pieces: Iterable[EncodedPiece | None], files: FileTable) -> None:
    """Write pieces, but for None, and the state of their files to a new part below `folder`."""
    with atomic_folder(folder / uuid.uuid4().hex) as part:
        write_pieces(part, (piece for piece in pieces if piece is not None))
        (part / _FILES).write_text(json.dumps(files))


def _load(path: Path) -> dict[str, Any]:
    """Return a JSON object; an empty one if the file is missing."""
    try:
        loaded: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    return loaded
