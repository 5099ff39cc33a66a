"""SQLite files that are written once, under a temporary name, and only read from then on.

They therefore need no journal and no locks, and the same rows make the same bytes.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path


@contextmanager
def write_database(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection to a file that no other process uses; write it at the end of the block.

    Raises:
        OSError: the disk is full.
    """
    try:
        uri = f"{path.absolute().as_uri()}?nolock=1"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = OFF")
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("BEGIN")
            yield connection
            connection.execute("COMMIT")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
        raise


def connect(path: Path) -> sqlite3.Connection:
    """Open a file for reading, from any thread.

    Raises:
        FileNotFoundError: there is none.
    """
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    try:
        return sqlite3.connect(uri, uri=True, check_same_thread=False)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_CANTOPEN:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from error
        raise


@contextmanager
def open_database(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file for reading, as `connect`, and close it at the end of the block."""
    with closing(connect(path)) as connection:
        yield connection
