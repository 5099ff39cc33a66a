"""Store encoded pieces in a SQLite file, one file for each set of settings."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np

from musicgen.data.preparation.encoding import EncodedPiece, PieceRecord
from musicgen.errors import UserError

_TABLE = """CREATE TABLE IF NOT EXISTS pieces (
    key TEXT PRIMARY KEY, record TEXT, tokens BLOB, crop_starts BLOB, sketch BLOB
) WITHOUT ROWID"""


class PieceStore:
    """Encoded pieces by a key of their name and files.

    What is added is there even if the process is killed. Only one process may add at a time.
    """

    def __init__(self, table: sqlite3.Connection) -> None:
        self._table = table

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[PieceStore]:
        """Open a file, or create it.

        Raises:
            OSError: the disk is full.
            UserError: the file is damaged, as by a loss of power.
        """
        try:
            with closing(sqlite3.connect(path, isolation_level=None)) as table:
                table.execute("PRAGMA synchronous = OFF")
                table.execute(_TABLE)
                yield cls(table)
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
            if error.sqlite_errorcode in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
                raise UserError(
                    f"{path}: damaged; remove it, and it will be created again"
                ) from None
            raise

    def keys(self) -> set[str]:
        return {key for (key,) in self._table.execute("SELECT key FROM pieces")}

    def add(self, pieces: Mapping[str, EncodedPiece]) -> None:
        """Add pieces by their keys, in one transaction."""
        rows = (
            (key, json.dumps(asdict(piece.record)), *(array.tobytes() for array in piece[1:]))
            for key, piece in pieces.items()
        )
        with self._table:  # ends the transaction in any case
            self._table.execute("BEGIN")
            self._table.executemany("INSERT OR REPLACE INTO pieces VALUES (?, ?, ?, ?, ?)", rows)

    def __getitem__(self, key: str) -> EncodedPiece:
        query = "SELECT tokens, crop_starts, sketch FROM pieces WHERE key = ?"
        arrays = self._table.execute(query, (key,)).fetchone()
        tokens, crop_starts, sketch = map(np.frombuffer, arrays, (np.uint16, np.int32, np.uint64))
        return EncodedPiece(self.record(key), tokens, crop_starts.reshape(-1, 2), sketch)

    def record(self, key: str) -> PieceRecord:
        """Return the record of `self[key]`, without reading its tokens."""
        query = "SELECT record FROM pieces WHERE key = ?"
        (text,) = self._table.execute(query, (key,)).fetchone()
        return PieceRecord(**json.loads(text))
