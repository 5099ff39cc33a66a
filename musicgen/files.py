"""Atomic writing: a file is complete or missing, even if the process is stopped."""

import csv
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`, which replaces it if there is no exception.

    Missing parent folders are created.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Keep the suffix: numpy and matplotlib derive the format from it.
    handle, name = tempfile.mkstemp(
        dir=path.parent, prefix=f".{path.stem[:40]}-", suffix=path.suffix
    )
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write `data` to `path` atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: str | Path, text: str) -> None:
    """Write `text` to `path` atomically, as UTF-8.

    Bytes of file names that are not UTF-8 are escaped as JSON does.
    """
    write_bytes(path, text.encode(errors="backslashreplace"))


def read_csv(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file, by the names of its columns."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@contextmanager
def remove_if_empty(folder: Path) -> Iterator[None]:
    """Remove the folder at the end of the block if nothing was written to it."""
    try:
        yield
    finally:
        with suppress(OSError):  # it is not empty
            folder.rmdir()
