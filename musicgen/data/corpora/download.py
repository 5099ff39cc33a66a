"""Download published archives, and unpack them atomically."""

import tarfile
import tempfile
import zipfile
from fnmatch import fnmatch
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

import torch
from filelock import FileLock

from musicgen.console import console, log
from musicgen.errors import UserError


class Archive(NamedTuple):
    """A published archive: its file's name, its terms in a few words, and its checksum, if any."""

    name: str
    url: str
    licence: str
    sha256: str | None = None


def download_archive(archive: Archive, folder: Path, *, only: str = "*") -> None:
    """Download an archive and unpack it as `folder`, unless `folder` contains files.

    Args:
        folder: receives the contents of the archive's single top folder, or all of its files.
        only: pattern on the archive's paths (top folder included); other files are not unpacked.
    """
    if holds_files(folder):  # nothing to write, not even a lock
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        FileLock(folder.with_name(f".{folder.name}.lock")),
        tempfile.TemporaryDirectory(
            prefix=".download-", dir=folder.parent, ignore_cleanup_errors=True
        ) as temporary,
    ):
        if holds_files(folder):
            return
        log(f"downloading {archive.url} ({archive.licence})")
        path = Path(temporary) / archive.name
        # Inside it, since other users cannot read the temporary folder itself.
        unpacked = Path(temporary) / "files"
        unpacked.mkdir()
        cure = f"start again, or download it with a browser, and unpack it as {folder}"
        try:
            torch.hub.download_url_to_file(
                archive.url, str(path), archive.sha256, progress=console.is_terminal
            )
        except (OSError, HTTPException, RuntimeError) as error:
            raise UserError(f"{archive.url}: {error or type(error).__name__}; {cure}") from None
        try:
            _unpack(path, unpacked, only)
        except Exception as error:  # damaged archives raise many types
            raise UserError(f"{archive.url}: cannot be unpacked ({error}); {cure}") from None
        inside = list(unpacked.iterdir())
        single = len(inside) == 1 and inside[0].is_dir()
        (inside[0] if single else unpacked).rename(folder)


def holds_files(folder: Path) -> bool:
    """Return whether a folder exists and is not empty."""
    return folder.is_dir() and any(folder.iterdir())


def _unpack(path: Path, folder: Path, only: str) -> None:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as zipped:  # drops leading slashes and `..`, checks CRC-32
            zipped.extractall(folder, [name for name in zipped.namelist() if fnmatch(name, only)])
    else:
        with tarfile.open(path) as tar:
            # No links: chains of them lead out of the folder (CVE-2025-4517).
            members = (m for m in tar if (m.isfile() or m.isdir()) and fnmatch(m.name, only))
            tar.extractall(folder, members, filter="data")
