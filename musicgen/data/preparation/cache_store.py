"""The folder of everything encoded with the same settings, shared by all processes.

    remi-1f0c…/             settings.json: the settings
        3ab9…/              a finished cache: a `PieceStore`, its index, report.csv, summary.txt
        parts/1-of-1/…/     `PieceStore`s of a preparation that is running or was stopped
        files.json          sizes and times of files, and their content digests

Folders appear atomically, by renaming. Locks only keep processes from doing the same work twice.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from musicgen.console import log
from musicgen.data.preparation.encoding import EncodedPiece, PieceRecord
from musicgen.data.preparation.piece_store import (
    RECORDS,
    PieceStore,
    atomic_folder,
    remove_damaged,
    write_checksums,
    write_piece_store,
)
from musicgen.files import write_text

_FILES, _SETTINGS = "files.json", "settings.json"
# Finished parts; the names of those being written or removed begin with a dot.
_PARTS = "parts/*/[!.]*"
FileTable = dict[str, list[str]]
"""Path of a piece to the signature of its files and their content digest."""

EncodedPieces = dict[str, tuple[PieceStore, int]]
"""Digest of a piece to the store that contains it, and its index there."""


class CacheStore:
    """The folder of some settings.

    Args:
        cache_dir: folder of all token caches.
        name: name of the tokenizer.
        settings: plain data: everything that affects the encoding of a piece, and the `format`.
    """

    def __init__(self, cache_dir: Path, name: str, settings: Mapping[str, Any]) -> None:
        text = json.dumps(settings, sort_keys=True, indent=1)
        digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        self.folder = cache_dir / f"{name}-{digest}"
        if not (self.folder / _SETTINGS).exists():
            stored = [_load(path) for path in cache_dir.glob(f"{name}-*/{_SETTINGS}")]
            if any(other.get("format") != settings["format"] for other in stored):
                log(
                    f"token caches of an older format in {cache_dir}: encoding again; "
                    "they can be deleted"
                )
            write_text(self.folder / _SETTINGS, text + "\n")

    def find_encoded(
        self, to_retry: Callable[[PieceRecord], bool]
    ) -> tuple[EncodedPieces, FileTable]:
        """Find all encoded pieces and their files; prefer results that are not to be retried."""
        finished = sorted(self.folder.glob(f"[!.]*/{RECORDS}"))
        pieces: EncodedPieces = {}
        for path in [*finished, *sorted(self.folder.glob(f"{_PARTS}/{RECORDS}"))]:
            with suppress(FileNotFoundError):  # removed by a process without locks
                if remove_damaged(path.parent):
                    continue
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

    def remove_parts(self, paths: set[str]) -> None:
        """Remove the parts that contain no other pieces than those of these paths."""
        for file in list(self.folder.glob(f"{_PARTS}/{_FILES}")):
            if _load(file).keys() <= paths:
                with suppress(FileNotFoundError):
                    # Renamed first, so that it disappears atomically.
                    hidden = file.parent.rename(file.parent.with_name(f".new-{file.parent.name}"))
                    shutil.rmtree(hidden, ignore_errors=True)


def write_part(folder: Path, pieces: Iterable[EncodedPiece | None], files: FileTable) -> None:
    """Write pieces and the state of their files to a new part below `folder`."""
    encoded = [piece for piece in pieces if piece is not None]
    with atomic_folder(folder / uuid.uuid4().hex) as part:
        write_piece_store(part, [piece.record for piece in encoded], encoded)
        (part / _FILES).write_text(json.dumps(files))
        write_checksums(part)


def _load(path: Path) -> dict[str, Any]:
    """Return a JSON object; an empty one if the file is missing or damaged."""
    try:
        loaded = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return loaded if isinstance(loaded, dict) else {}
