"""The folder of all that was encoded with the same settings, by whichever process.

    remi-1f0c…/             settings.json says what it is for
        3ab9…/              a finished cache: a `Shelf`, its index, report.csv, summary.txt
        parts/1-of-1/…/     shelves of a preparation that is under way, or was stopped
        files.json          sizes and times of files, and what their content was then

Shelves and caches appear as a whole, by the renaming of a folder. Locks keep processes from doing
the same work twice, but nothing else depends on them.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from rich.console import Console

from musicgen.data.encoding import Encoded, Record
from musicgen.data.shelf import RECORDS, Shelf, atomic_folder, remove_leftovers, write_shelf
from musicgen.files import write_text

_FILES, _LOCK = "files.json", ".lock"
console = Console(stderr=True)
say = partial(console.print, markup=False, highlight=False, soft_wrap=True)

Table = dict[str, list[str]]
"""By path: the signature of a piece's files, and a digest of what was in them then."""

Library = dict[str, tuple[Shelf, int]]
"""By digest of name and content: where an encoded piece lies."""


class Home:
    """The folder for some settings below the folder of caches.

    Args:
        folder: of the caches.
        name: of the tokenizer.
        settings: plain data, all that decides what a piece is encoded as.
    """

    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any]) -> None:
        text = json.dumps(settings, sort_keys=True, indent=1)
        digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        self.folder = folder / f"{name}-{digest}"
        if not (self.folder / "settings.json").exists():
            write_text(self.folder / "settings.json", text + "\n")

    def library(self, to_retry: Callable[[Record], bool]) -> Library:
        """All encoded pieces; one that is not to be encoded again goes before one that is."""
        finished = sorted(self.folder.glob(f"*/{RECORDS}"))
        parts = sorted(self.folder.glob(f"parts/*/*/{RECORDS}"))
        library: Library = {}
        for path in [*finished, *parts]:
            if path.parent.name.startswith("."):
                continue
            with suppress(FileNotFoundError):  # removed by a process that could not lock
                shelf = Shelf(path.parent)
                for place, record in enumerate(shelf.records):
                    known = library.get(record.digest)
                    if known is None or to_retry(known[0].records[known[1]]):
                        library[record.digest] = shelf, place
        return library

    def remembered(self) -> Table:
        """What files held when a cache was finished."""
        return _load(self.folder / _FILES)

    def remember(self, table: Table) -> None:
        write_text(self.folder / _FILES, json.dumps(self.remembered() | table))

    def table(self) -> Table:
        """What files held, also those in parts."""
        table = self.remembered()
        for path in self.folder.glob(f"parts/*/*/{_FILES}"):
            table |= _load(path)
        return table

    @contextmanager
    def part(self, name: str) -> Iterator[Path]:
        """A folder for parts, which is this process' alone."""
        folder = self.folder / "parts" / name
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            yield folder

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While no other process finishes a cache, and takes away the parts that are in it."""
        with _locked(self.folder):
            yield

    def remove_parts(self, paths: set[str]) -> None:
        """Remove the parts that are of these paths only."""
        for file in list(self.folder.glob(f"parts/*/*/{_FILES}")):
            part = file.parent
            if not part.name.startswith(".") and _load(file).keys() <= paths:
                with suppress(FileNotFoundError):
                    # First out of sight, as a whole.
                    gone = part.rename(part.with_name(f".new-{part.name}"))
                    shutil.rmtree(gone, ignore_errors=True)


def write_part(folder: Path, encoded: Sequence[Encoded], table: Table) -> None:
    """A new shelf in a folder of parts, and what the files were like."""
    with atomic_folder(folder / uuid.uuid4().hex) as part:
        write_shelf(part, [piece.record for piece in encoded], encoded)
        (part / _FILES).write_text(json.dumps(table))


def _load(path: Path) -> Table:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return {}


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a folder's lock, which the system takes back from a killed process."""
    lock = FileLock(folder / _LOCK)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        say(f"another process is at work in {folder}: waiting for it")
        lock.acquire()
    except (NotImplementedError, OSError):  # a file system without locks
        pass  # all do the work, and end alike
    try:
        if lock.is_locked:
            remove_leftovers(folder)
        yield
    finally:
        lock.release()
