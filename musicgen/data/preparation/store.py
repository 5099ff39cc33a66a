"""The pieces that were encoded with the same settings, in a SQLite file."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np

from musicgen.data.preparation.encoding import EncodedPiece, PieceRecord
from musicgen.errors import UserError
from musicgen.tokenization.base import EncodingSummary

_TABLES = """
CREATE TABLE IF NOT EXISTS pieces (
    digest TEXT PRIMARY KEY, record TEXT, limits TEXT, tokens BLOB, crop_starts BLOB, sketch BLOB
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS files (
    path BLOB PRIMARY KEY, signature TEXT, content TEXT
) WITHOUT ROWID;
"""

FileRow = tuple[bytes, str, str]
"""Path of a piece, the signature of its files, and their content digest."""


class PieceStore:
    """Encoded pieces, found by the digest of their name and content, and the files they are from.

    What is added is there even if the process is killed. Only one process may add at a time.
    """

    def __init__(self, table: sqlite3.Connection) -> None:
        self._table = table

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[PieceStore]:
        """Open a file, or make it.

        Raises:
            OSError: the disk is full.
            UserError: the file is damaged.
        """
        try:
            with closing(sqlite3.connect(path, isolation_level=None)) as table:
                table.execute("PRAGMA synchronous = OFF")
                table.executescript(_TABLES)
                yield cls(table)
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
            if error.sqlite_errorcode in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
                raise UserError(f"{path}: damaged; remove it, it is made again") from None
            raise

    def content(self, path: bytes, signature: str) -> str | None:
        """Return a piece's content digest, if its files have not changed since they were read."""
        query = "SELECT content FROM files WHERE path = ? AND signature = ?"
        row = self._table.execute(query, (path, signature)).fetchone() if signature else None
        return row[0] if row else None

    def done(self, limits: Sequence[float]) -> set[str]:
        """Return the digests of all pieces but those that failed under other limits."""
        query = "SELECT digest FROM pieces WHERE limits IS NULL OR limits = ?"
        return {digest for (digest,) in self._table.execute(query, (json.dumps(limits),))}

    def add(self, pieces: Iterable[EncodedPiece], files: Iterable[FileRow]) -> None:
        """Add pieces and the state of files, or replace them."""
        self._table.execute("BEGIN")
        self._table.executemany(
            "INSERT OR REPLACE INTO pieces VALUES (?, ?, ?, ?, ?, ?)",
            (
                (
                    piece.record.digest,
                    json.dumps(asdict(piece.record)),
                    piece.record.failed_under and json.dumps(piece.record.failed_under),
                    *(array.tobytes() for array in piece[1:]),
                )
                for piece in pieces
            ),
        )
        self._table.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", files)
        self._table.execute("COMMIT")

    def __getitem__(self, digest: str) -> EncodedPiece:
        query = "SELECT record, tokens, crop_starts, sketch FROM pieces WHERE digest = ?"
        record, *arrays = self._table.execute(query, (digest,)).fetchone()
        tokens, crop_starts, sketch = map(np.frombuffer, arrays, (np.uint16, np.int32, np.uint64))
        return EncodedPiece(_record_of(record), tokens, crop_starts.reshape(-1, 2), sketch)

    def record(self, digest: str) -> PieceRecord:
        """Return what `self[digest]` has as its record, without reading the rest."""
        query = "SELECT record FROM pieces WHERE digest = ?"
        return _record_of(self._table.execute(query, (digest,)).fetchone()[0])


def _record_of(text: str) -> PieceRecord:
    content = json.loads(text)
    return PieceRecord(**content | {"encoding": EncodingSummary(**content["encoding"])})
