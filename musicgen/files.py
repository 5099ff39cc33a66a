"""Atomic writing: a file is either whole or not there, whenever the process is stopped."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`; on success it becomes `path`.

    Missing parent folders are created. On an exception the temporary file is removed
    and an older `path` stays as it was.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The suffix is kept, since writers such as numpy and matplotlib go by it.
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
    """Write `text` to `path` atomically, as UTF-8."""
    write_bytes(path, text.encode())


@contextmanager
def kept_if_filled(folder: Path) -> Iterator[None]:
    """Remove a folder into which nothing was written after all."""
    try:
        yield
    finally:
        with suppress(OSError):  # it is not empty
            folder.rmdir()
