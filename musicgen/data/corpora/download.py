"""Download published archives: resumed after an interruption, verified, unpacked atomically.

pooch, `urllib.request` and `torch.hub` do not resume, and huggingface_hub resumes from its own host
only.
"""

from __future__ import annotations

import hashlib
import http.client
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from filelock import FileLock
from rich.progress import DownloadColumn, TransferSpeedColumn

from musicgen.console import log, progress_bar
from musicgen.errors import UserError

_BLOCK = 1 << 20
_TIMEOUT = 60.0  # seconds without a byte until a connection counts as broken
_ATTEMPTS = 5
_PAUSE = 1.0  # seconds between attempts


@dataclass(frozen=True)
class Archive:
    """A published archive.

    Attributes:
        name: file name; its suffix decides how it is unpacked.
        licence: its terms, in a few words.
        size: published size in bytes, if any.
        digests: published checksums by algorithm, such as {"sha256": "b4ef…"}.
    """

    name: str
    url: str
    licence: str
    size: int | None = None
    digests: Mapping[str, str] = field(default_factory=dict)


def download_archive(archive: Archive, folder: Path, *, only: str = "*") -> None:
    """Download an archive next to `folder` and unpack it there, unless `folder` contains files.

    An interrupted download is kept in `NAME.part`, and resumed if there is a checksum to verify the
    result by. An archive that was put there by hand is verified and used.

    Args:
        folder: receives the contents of the archive's single top folder, or all of its files.
        only: pattern on the archive's paths (top folder included); other files are not unpacked.
    """
    if holds_files(folder):  # nothing to write, not even a lock
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.parent / archive.name
    with FileLock(path.with_name(f".{path.name}.lock")):
        if holds_files(folder):
            return
        if not path.is_file():
            _download(archive, path)
        _verify(archive, path)
        _unpack(path, folder, only)
        path.unlink()


def holds_files(folder: Path) -> bool:
    """Return whether a folder exists and is not empty."""
    return folder.is_dir() and any(folder.iterdir())


def _download(archive: Archive, path: Path) -> None:
    part = path.with_name(path.name + ".part")
    log(f"downloading {archive.url} ({archive.licence})")
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            _fetch(archive, part)
            break
        except (OSError, http.client.HTTPException) as error:
            if attempt == _ATTEMPTS or isinstance(error, urllib.error.HTTPError):
                raise UserError(
                    f"{archive.url}: {error or type(error).__name__}; start again to resume "
                    f"{part}, or download it with a browser to {path}"
                ) from None
            time.sleep(_PAUSE)
    part.replace(path)


def _fetch(archive: Archive, part: Path) -> None:
    """Append the missing bytes to `part`."""
    # Without a checksum, parts of different versions would go unnoticed.
    start = part.stat().st_size if archive.digests and part.is_file() else 0
    if start and start == archive.size:
        return
    headers = {"User-Agent": "musicgen"} | ({"Range": f"bytes={start}-"} if start else {})
    request = urllib.request.Request(archive.url, headers=headers)
    with (
        urllib.request.urlopen(request, timeout=_TIMEOUT) as response,
        progress_bar(DownloadColumn(), TransferSpeedColumn()) as progress,
    ):
        start = start if response.status == 206 else 0  # 206: the server resumes
        length = response.headers.get("Content-Length")
        total = archive.size if length is None else start + int(length)
        bar = progress.add_task(archive.name, total=total, completed=start)
        with part.open("ab" if start else "wb") as file:
            while block := response.read(_BLOCK):
                file.write(block)
                progress.advance(bar, len(block))
    missing = (total or 0) - part.stat().st_size
    if missing > 0:
        raise http.client.IncompleteRead(b"", missing)


def _verify(archive: Archive, path: Path) -> None:
    """Remove a file without the published checksums, and raise."""
    for algorithm, published in archive.digests.items():
        with path.open("rb") as file:
            found = hashlib.file_digest(file, algorithm).hexdigest()
        if found != published:
            path.unlink()
            raise UserError(
                f"{path} has the {algorithm} {found} instead of {published}; it was removed: start "
                f"again, or get the published one from {archive.url}"
            )


def _unpack(path: Path, folder: Path, only: str) -> None:
    """Unpack the archive as `folder`, atomically."""
    with tempfile.TemporaryDirectory(
        prefix=".unpacking-", dir=folder.parent, ignore_cleanup_errors=True
    ) as temporary:
        # Inside it, since other users cannot read the temporary folder itself.
        unpacked = Path(temporary) / "files"
        unpacked.mkdir()
        try:
            if path.suffix == ".zip":
                with zipfile.ZipFile(path) as zipped:  # drops leading slashes, `..`; checks CRC-32
                    names = [name for name in zipped.namelist() if fnmatch(name, only)]
                    zipped.extractall(unpacked, names)
            else:
                with tarfile.open(path) as tar:
                    # No links: chains of them lead out of the folder (CVE-2025-4517).
                    members = (m for m in tar if m.isfile() or m.isdir())
                    wanted = (member for member in members if fnmatch(member.name, only))
                    tar.extractall(unpacked, wanted, filter="data")
        except Exception as error:  # damaged archives raise many types
            message = f"{path}: cannot be unpacked ({error}); remove it and start again"
            raise UserError(message) from None
        inside = list(unpacked.iterdir())
        single = len(inside) == 1 and inside[0].is_dir()
        (inside[0] if single else unpacked).rename(folder)
