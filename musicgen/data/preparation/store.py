"""The store of encoded pieces: records in a SQLite file, and arrays in a binary file."""

from __future__ import annotations

import errno
import json
import os
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from musicgen.data.preparation.encoding import EncodedPiece, PieceRecord
from musicgen.errors import UserError

_TABLES = """
CREATE TABLE IF NOT EXISTS pieces (
    key TEXT PRIMARY KEY, record TEXT, sketch BLOB, start INTEGER, stop INTEGER
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS files (name TEXT);
"""


class StoredPiece(NamedTuple):
    """A stored piece without its arrays, and the place of these.

    Attributes:
        record: the result of its preparation.
        sketch: [SKETCH_SIZE], sketch of its passages, see `duplicates`.
        file: name of the file with its arrays, in the format of `as_bytes`.
        start: first byte of the arrays in this file.
    """

    record: PieceRecord
    sketch: NDArray[np.uint64]
    file: str
    start: int


def as_bytes(piece: EncodedPiece) -> bytes:
    """Return the crop starts and the tokens of a piece as bytes.

    The number of bytes is a multiple of four, so that the next crop starts are aligned when
    `TokenCache` maps them.
    """
    arrays = piece.crop_starts.tobytes() + piece.tokens.tobytes()
    return arrays + bytes(-len(arrays) % 4)


class PieceStore:
    """Encoded pieces, by a key that is a hash of their name and files.

    Added pieces are stored even if the process is killed later. Only one process at a time may add
    pieces.

    Attributes:
        data_file: name of the file of arrays, in the folder of the SQLite file. It is unique for
            each store, so that a cache never reads the arrays of another store.
    """

    def __init__(self, path: Path, table: sqlite3.Connection) -> None:
        self._table, self._folder = table, path.parent
        table.executescript(_TABLES)
        name = f"{path.stem}-{secrets.token_hex(4)}.bin"
        named = "SELECT name FROM files"
        if table.execute(named).fetchone() is None:  # else nothing waits for others to write
            # In one statement, as two processes may open a new store at the same time.
            new = "INSERT INTO files SELECT ? WHERE NOT EXISTS (SELECT * FROM files)"
            table.execute(new, (name,))
        (self.data_file,) = table.execute(named).fetchone()

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[PieceStore]:
        """Return a context with an open store, which is created if necessary.

        Raises:
            OSError: the disk is full.
            UserError: the file is damaged, for example by a power failure.
        """
        try:
            with closing(sqlite3.connect(path, isolation_level=None)) as table:
                table.execute("PRAGMA synchronous = OFF")
                yield cls(path, table)
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
            if error.sqlite_errorcode in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
                raise UserError(
                    f"{path}: damaged; remove it, and it will be created again"
                ) from None
            raise

    def keys(self) -> set[str]:
        """Return the keys of all pieces."""
        return {key for (key,) in self._table.execute("SELECT key FROM pieces")}

    def add(self, results: Iterable[tuple[Mapping[str, PieceRecord], EncodedPiece]]) -> None:
        """Add pieces in one transaction.

        Args:
            results: for each encoded piece, the records of all pieces with the same content, by
                their keys. Their arrays are stored once.
        """
        rows, start = [], self._size
        with (self._folder / self.data_file).open("ab") as file:
            file.truncate(start)  # what a killed process wrote without an entry in the table
            for records, piece in results:
                stop = start + file.write(as_bytes(piece))
                for key, record in records.items():
                    text = json.dumps(vars(record))
                    rows.append((key, text, piece.sketch.tobytes(), start, stop))
                start = stop
        with self._table:  # ends the transaction in any case
            self._table.execute("BEGIN")
            self._table.executemany("INSERT OR REPLACE INTO pieces VALUES (?, ?, ?, ?, ?)", rows)
        self._size = start

    @cached_property
    def _size(self) -> int:
        """Number of bytes of the file of arrays that belong to pieces in the table."""
        query = "SELECT coalesce(max(stop), 0) FROM pieces"
        size: int = self._table.execute(query).fetchone()[0]
        return size

    def __getitem__(self, key: str) -> StoredPiece:
        query = "SELECT record, sketch, start FROM pieces WHERE key = ?"
        text, sketch, start = self._table.execute(query, (key,)).fetchone()
        record = PieceRecord(**json.loads(text))
        return StoredPiece(record, np.frombuffer(sketch, np.uint64), self.data_file, start)
