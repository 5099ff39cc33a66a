"""The cache: encoded pieces on disk, found by their name and content.

    remi-1f0c…/             what was encoded with the same settings, by their hash
        3ab9…/              a finished `TokenCache`: its pieces, index, report.csv, summary.txt
        parts/1-of-1/…/     `PieceStore`s of a preparation that is running or was stopped
        files.db            signatures of files, and their content digests
        starts/…json        the cache of a corpus, and what shows that it is unchanged; see `starts`

Folders appear atomically, by renaming. Locks only keep processes from doing the same work twice.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from musicgen.console import log
from musicgen.data.corpora.base import SPLITS, Piece
from musicgen.data.preparation.database import connect, open_database, write_database
from musicgen.data.preparation.duplicates import SKETCH_SIZE, find_duplicates
from musicgen.data.preparation.encoding import EncodedPiece, PieceRecord
from musicgen.data.preparation.shared import PassageHashes, find_shared
from musicgen.data.preparation.splits import split_groups
from musicgen.data.preparation.summary import (
    SUMMARY,
    WARNING,
    read_summary,
    summarise,
    write_table,
)
from musicgen.errors import UserError
from musicgen.files import atomic_path
from musicgen.tokenization.base import EncodingSummary

INDEX, PIECES, FILES = "index.npy", "pieces.db", "files.db"
TOKENS, CROP_STARTS, SKETCHES = "tokens.bin", "crop_starts.bin", "sketches.bin"  # raw bytes
_ROWS = {TOKENS: "u2", CROP_STARTS: "2i4", SKETCHES: f"{SKETCH_SIZE}u8"}
# Finished parts; the names of those being written or removed begin with a dot.
_PARTS = "parts/*/[!.]*"

# Names of files need not be valid UTF-8, and are stored as their bytes.
_PIECES_TABLE = """CREATE TABLE pieces (
    piece INTEGER PRIMARY KEY, name BLOB, digest TEXT, skipped BLOB, bar_length INTEGER,
    num_tokens INTEGER, num_bars INTEGER, encoding TEXT, failed_under TEXT,
    first_token INTEGER, first_bar INTEGER)"""
_FILES_TABLE = """CREATE TABLE IF NOT EXISTS files (
    path BLOB PRIMARY KEY, signature TEXT, content TEXT) WITHOUT ROWID"""
_ENCODED_TABLE = """CREATE TABLE encoded (
    digest TEXT PRIMARY KEY, store INTEGER, piece INTEGER, failed_under TEXT) WITHOUT ROWID"""
_ADD_FILE = "INSERT OR REPLACE INTO files VALUES (?, ?, ?)"
_KEPT = "skipped = x''"

_INDEX_ROW = np.dtype([(name, np.int32) for name in ("split", "bar_length", "tokens", "bars")])

FileRow = tuple[bytes, str, str]
"""Path of a piece, the signature of its files, and their content digest."""


class PieceStore:
    """The pieces in a folder written by `write_pieces`, each with a record."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, piece: int) -> EncodedPiece:
        query = "SELECT * FROM pieces WHERE piece = ?"
        row = _open_pieces(self.folder).execute(query, (piece,)).fetchone()
        tokens, crop_starts, sketches = _open_rows(self.folder)
        record, (token, bar) = _record_of(row), row[-2:]
        return EncodedPiece(
            record,
            tokens[token : token + record.num_tokens],
            crop_starts[bar : bar + record.num_bars],
            sketches[piece],
        )

    def records(self) -> Iterator[PieceRecord]:
        """Read the records one at a time."""
        with open_database(self.folder / PIECES) as table:
            yield from map(_record_of, table.execute("SELECT * FROM pieces ORDER BY piece"))


def _row_of(record: PieceRecord) -> tuple[Any, ...]:
    return (
        os.fsencode(record.name),
        record.digest,
        os.fsencode(record.skipped),
        record.bar_length,
        record.num_tokens,
        record.num_bars,
        json.dumps(vars(record.encoding)),
        _limits_text(record.failed_under),
    )


def _record_of(row: tuple[Any, ...]) -> PieceRecord:
    _, name, digest, skipped, bar_length, num_tokens, num_bars, encoding, failed_under, *_ = row
    return PieceRecord(
        os.fsdecode(name),
        digest,
        os.fsdecode(skipped),
        bar_length,
        num_tokens,
        num_bars,
        EncodingSummary(**json.loads(encoding)),
        None if failed_under is None else json.loads(failed_under),
    )


def _limits_text(limits: Sequence[float] | None) -> str | None:
    return None if limits is None else json.dumps([float(limit) for limit in limits])


class TokenCache:
    """The tokens of a corpus, the input of the loader: its kept pieces, memory-mapped.

    Attributes:
        lengths: numbers of tokens. [num_pieces]
        bar_lengths: grid steps in a bar of each piece.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            index = np.load(folder / INDEX)
        except ValueError:
            raise UserError(
                f"{folder / INDEX}: damaged; remove {folder}, it is made again"
            ) from None
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
        tokens = open_arrays(self.folder)[0]
        return tokens[self._token_offsets[piece] : self._token_offsets[piece + 1]]

    def crop_starts(self, piece: int) -> NDArray[Any]:
        """Return the starts of a piece's crops, see `Tokenizer.crop_starts`. [num_bars, 2]."""
        crop_starts = open_arrays(self.folder)[1]
        return crop_starts[self._bar_offsets[piece] : self._bar_offsets[piece + 1]]

    @cached_property
    def names(self) -> list[str]:
        """The names of the pieces, read on first use."""
        with open_database(self.folder / PIECES) as table:
            rows = table.execute(f"SELECT name FROM pieces WHERE {_KEPT} ORDER BY piece")
            return [os.fsdecode(name) for (name,) in rows]

    @property
    def warnings(self) -> list[str]:
        """The lines of its summary that warn of something."""
        return [line for line in read_summary(self.folder) if line.startswith(WARNING)]

    @property
    def splits(self) -> list[str]:
        """The split of each piece."""
        return [SPLITS[split] for split in self._splits]

    def pieces(self, split: str) -> list[int]:
        """Return the indices of a split's pieces."""
        return np.flatnonzero(self._splits == SPLITS.index(split)).tolist()


@lru_cache(maxsize=64)
def _open_pieces(folder: Path) -> sqlite3.Connection:
    table = connect(folder / PIECES)
    table.execute("PRAGMA cache_size = 16")  # pages of 4 kB instead of 2 MB
    return table


# Bounded, since each store takes three open files.
@lru_cache(maxsize=64)
def _open_rows(folder: Path) -> tuple[_Rows, ...]:
    """Return the tokens, crop starts and sketches of a store."""
    return tuple(_Rows(folder / name) for name in _ROWS)


class _Rows:
    """The rows of an array in a file. Read rows are not kept in memory, as mapped ones are."""

    def __init__(self, path: Path) -> None:
        self._file, self._dtype = path.open("rb"), np.dtype(_ROWS[path.name])

    def __len__(self) -> int:
        return os.fstat(self._file.fileno()).st_size // self._dtype.itemsize

    def __getitem__(self, rows: int | slice) -> NDArray[Any]:
        if not isinstance(rows, slice):
            return self[rows : rows + 1][0]
        self._file.seek(rows.start * self._dtype.itemsize)
        content = self._file.read((rows.stop - rows.start) * self._dtype.itemsize)
        return np.frombuffer(content, self._dtype)


@lru_cache(maxsize=64)
def open_arrays(folder: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the tokens and crop starts of a cache, memory-mapped."""
    return _map(folder / TOKENS, np.uint16, -1), _map(folder / CROP_STARTS, np.int32, -1, 2)


def _map(path: Path, dtype: type, *shape: int) -> NDArray[Any]:
    # As a plain array, since slicing a memmap is slow. An empty file cannot be mapped.
    array = np.memmap(path, dtype, "r") if path.stat().st_size else np.empty(0, dtype)
    return np.asarray(array).reshape(shape)


def write_pieces(folder: Path, pieces: Iterable[EncodedPiece]) -> None:
    """Write pieces, one at a time, and their records to an empty folder."""
    token = bar = 0
    with (
        (folder / TOKENS).open("wb") as tokens,
        (folder / CROP_STARTS).open("wb") as crop_starts,
        (folder / SKETCHES).open("wb") as sketches,
        write_database(folder / PIECES) as table,
    ):
        table.execute(_PIECES_TABLE)
        for index, piece in enumerate(pieces):
            row = (index, *_row_of(piece.record), token, bar)
            table.execute(f"INSERT INTO pieces VALUES ({', '.join('?' * len(row))})", row)
            tokens.write(piece.tokens.tobytes())
            crop_starts.write(piece.crop_starts.tobytes())
            sketches.write(piece.sketch.tobytes())
            token += len(piece.tokens)
            bar += len(piece.crop_starts)


def _remove(folder: Path) -> None:
    """Remove a folder atomically: under a hidden name at first."""
    with suppress(OSError):
        hidden = folder.rename(folder.with_name(f".new-{uuid.uuid4().hex}"))
        shutil.rmtree(hidden, ignore_errors=True)


def build_cache(
    folder: Path,
    pieces: Sequence[Piece],
    encoded: Iterable[EncodedPiece],
    fractions: tuple[float, float],
) -> None:
    """Fill a folder with a cache: the same bytes for the same pieces, whatever their sources.

    Args:
        encoded: of each piece; read one at a time.

    Raises:
        UserError: no piece can be used.
    """
    write_pieces(folder, encoded)
    with open_database(folder / PIECES) as table:
        rows = table.execute(
            "SELECT piece, bar_length, num_tokens, num_bars FROM pieces "
            f"WHERE {_KEPT} ORDER BY piece"
        )
        kept_rows = np.fromiter(rows, _INDEX_ROW)
        reason = table.execute("SELECT skipped FROM pieces WHERE piece = 0").fetchone()
    if not len(kept_rows):
        why = f"{pieces[0].path}: {os.fsdecode(reason[0])}" if reason else "there is none"
        raise UserError(f"none of {len(pieces)} pieces can be used; the first: {why}")
    kept = kept_rows["split"].copy()  # the column is filled below
    originals = _originals(folder, pieces, kept)
    grouped = [
        replace(pieces[i], group=pieces[originals[i]].group) if i in originals else pieces[i]
        for i in kept
    ]
    split_names = split_groups(grouped, fractions)
    kept_rows["split"] = [SPLITS.index(split) for split in split_names]
    np.save(folder / INDEX, kept_rows)

    splits, duplicate_of = [""] * len(pieces), [""] * len(pieces)
    for i, split in zip(kept, split_names, strict=True):
        splits[i] = split
    for i, original in originals.items():
        duplicate_of[i] = pieces[original].name
    store = PieceStore(folder)
    write_table(folder, store.records(), splits, duplicate_of)
    leaks = find_shared(PassageHashes(_Rows(folder / SKETCHES), kept.tolist()), split_names)
    pairs = {pieces[kept[i]].name: pieces[kept[other]].name for i, other, *_ in leaks}
    summary = summarise(store.records(), splits, duplicate_of, pairs)
    (folder / SUMMARY).write_text(summary + "\n", encoding="utf-8", errors="surrogateescape")


def _originals(folder: Path, pieces: Sequence[Piece], kept: NDArray[Any]) -> dict[int, int]:
    """Return the first piece, by name, of the same music, for each one that is not the first."""
    by_name = sorted(kept.tolist(), key=lambda i: pieces[i].name)
    first_of = find_duplicates(_Rows(folder / SKETCHES), by_name)
    return {i: first for i, first in zip(by_name, first_of, strict=True) if i != first}


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

    @contextmanager
    def find_encoded(self, limits: Sequence[float]) -> Iterator[EncodedPieces]:
        """Find all encoded pieces and their files; prefer results that are not to be retried.

        Args:
            limits: of time and memory; a failure under others is to be retried.
        """
        finished = sorted(self.folder.glob(f"[!.]*/{PIECES}"))
        folders = [path.parent for path in finished]
        folders += [path.parent for path in sorted(self.folder.glob(f"{_PARTS}/{PIECES}"))]
        files = [self.folder / FILES, *self.folder.glob(f"{_PARTS}/{FILES}")]
        # A temporary file of SQLite: in memory, a million pieces would take half a gigabyte.
        with closing(sqlite3.connect("", isolation_level=None)) as table:
            table.execute("BEGIN")
            table.execute(_ENCODED_TABLE)
            table.execute(_FILES_TABLE)
            encoded = EncodedPieces(table, [PieceStore(folder) for folder in folders], limits)
            # A process without locks may remove parts meanwhile.
            for number, folder in enumerate(folders):
                with suppress(FileNotFoundError):
                    encoded.add_store(number, folder)
            for path in files:
                with suppress(FileNotFoundError), open_database(path) as other:
                    table.executemany(_ADD_FILE, other.execute("SELECT * FROM files"))
            yield encoded

    def remove_parts(self, paths: Iterable[bytes]) -> None:
        """Remove the parts that contain no other pieces than those of these paths."""
        parts = list(self.folder.glob(f"{_PARTS}/{FILES}"))
        with closing(sqlite3.connect("", isolation_level=None)) as known:
            known.execute("BEGIN")
            known.execute("CREATE TABLE known (path BLOB PRIMARY KEY) WITHOUT ROWID")
            rows = ((path,) for path in paths) if parts else ()
            known.executemany("INSERT OR IGNORE INTO known VALUES (?)", rows)
            for file in parts:
                # A process without locks may remove parts meanwhile.
                with suppress(FileNotFoundError), open_database(file) as table:
                    own = all(
                        known.execute("SELECT 1 FROM known WHERE path = ?", row).fetchone()
                        for row in table.execute("SELECT path FROM files")
                    )
                    if own:
                        _remove(file.parent)

    def add_finished_files(self, files: Iterable[FileRow]) -> None:
        path = self.folder / FILES
        with atomic_path(path) as new:
            with suppress(FileNotFoundError):
                shutil.copyfile(path, new)
            _write_files(new, files)

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


class EncodedPieces:
    """The pieces found by `CacheStore.find_encoded`, by digest, and `files`, by path."""

    def __init__(
        self, table: sqlite3.Connection, stores: Sequence[PieceStore], limits: Sequence[float]
    ) -> None:
        self.files, self._stores, self._limits = table, stores, _limits_text(limits)

    def add_store(self, number: int, folder: Path) -> None:
        with open_database(folder / PIECES) as other:
            self.files.executemany(
                "INSERT INTO encoded VALUES (?, ?, ?, ?) ON CONFLICT (digest) DO UPDATE SET "
                "store = excluded.store, piece = excluded.piece, "
                "failed_under = excluded.failed_under WHERE failed_under != ?",
                (
                    (digest, number, piece, failed_under, self._limits)
                    for digest, piece, failed_under in other.execute(
                        "SELECT digest, piece, failed_under FROM pieces"
                    )
                ),
            )

    def done(self) -> set[str]:
        """Return the digests of the pieces that are not to be retried."""
        query = "SELECT digest FROM encoded WHERE failed_under IS NULL OR failed_under = ?"
        return {digest for (digest,) in self.files.execute(query, (self._limits,))}

    def failed_under(self, digest: str) -> tuple[str | None] | None:
        """Return the limits that a piece failed under, as text, if it is encoded."""
        query = "SELECT failed_under FROM encoded WHERE digest = ?"
        row: tuple[str | None] | None = self.files.execute(query, (digest,)).fetchone()
        return row

    def __getitem__(self, digest: str) -> EncodedPiece:
        query = "SELECT store, piece FROM encoded WHERE digest = ?"
        store, piece = self.files.execute(query, (digest,)).fetchone()
        return self._stores[store][piece]


def content_of(files: sqlite3.Connection, path: bytes, signature: str) -> str | None:
    """Return a piece's content digest in a table, if its files have not changed since."""
    query = "SELECT content FROM files WHERE path = ? AND signature = ?"
    row = files.execute(query, (path, signature)).fetchone() if signature else None
    return row[0] if row else None


def write_part(
    folder: Path, pieces: Iterable[EncodedPiece | None], files: Iterable[FileRow]
) -> None:
    """Write pieces, but for None, and the state of their files to a new part below `folder`."""
    with atomic_folder(folder / uuid.uuid4().hex) as part:
        write_pieces(part, (piece for piece in pieces if piece is not None))
        _write_files(part / FILES, files)


def _write_files(path: Path, files: Iterable[FileRow]) -> None:
    with write_database(path) as table:
        table.execute(_FILES_TABLE)
        table.executemany(_ADD_FILE, files)
