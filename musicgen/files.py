"""Files that are written atomically, and files that are read from folders of other people.

A file is written completely or not at all, even if the process is stopped.
"""

import csv
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from musicgen.errors import UserError

_LARGEST = 2**26  # bytes of a text that is read whole


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


def write_json(path: str | Path, content: Mapping[str, Any]) -> None:
    """Write `content` to `path` atomically, as JSON."""
    write_text(path, json.dumps(content, indent=1) + "\n")


def regular_size(path: Path) -> int:
    """Return the bytes of a regular file.

    Raises:
        UserError: the file is missing, or a pipe or a device, where reading may never end.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{path}: not a regular file; remove it, or use another copy")
    return status.st_size


def read_plain(path: str | Path, folder: str | Path | None = None, most: int = _LARGEST) -> bytes:
    """Return the content of a regular file, which may come from an untrusted source.

    Args:
        folder: a link to a place outside it is refused; None: links are followed.
        most: bytes of the largest file that is read.

    Raises:
        UserError: the file is missing, too large, outside the folder, or no regular file.
    """
    path = Path(path)
    if folder is not None and not path.resolve().is_relative_to(Path(folder).resolve()):
        raise UserError(f"{path}: a link out of {folder}; remove it")
    size = regular_size(path)
    if size > most:
        raise UserError(f"{path}: {size:,} bytes, of at most {most:,}; use another copy")
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


def read_json(path: str | Path, folder: str | Path | None = None) -> Any:
    """Return the content of a JSON file that musicgen saved.

    Raises:
        UserError: the file cannot be read, see `read_plain`, or is not JSON.
    """
    content = read_plain(path, folder)
    try:
        return json.loads(content)
    except (ValueError, RecursionError):  # not UTF-8, not JSON, or endless brackets
        raise UserError(f"{path}: not JSON; give a file that musicgen saved") from None


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
