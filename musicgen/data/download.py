"""Published archives to folders: resumed after an interruption, verified, unpacked whole or not.

Why not a library: pooch verifies but begins again after an interruption, `urllib.request` and
`torch.hub` do not resume either, and huggingface_hub resumes from its own host only.
"""

from __future__ import annotations

import hashlib
import http.client
import shutil
import tarfile
import time
import urllib.error
import urllib.request
import uuid
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from lzma import LZMAError
from pathlib import Path

from filelock import FileLock
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from musicgen.data.home import console, say
from musicgen.errors import UserError

_BLOCK = 1 << 20
_BROKEN = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, LZMAError, OSError)
_TIMEOUT = 60.0  # seconds without a byte, after which a connection is taken for broken
_ATTEMPTS = 5  # in a row that bring nothing
_PAUSE = 1.0  # seconds between two of them


@dataclass(frozen=True)
class Archive:
    """A file that its authors publish.

    Attributes:
        name: of the file; its ending says how to unpack it.
        url: where it is.
        licence: under which it may be had, in a few words.
        size: in bytes, if published.
        digests: published checksums by algorithm, such as {"sha256": "b4ef…"}.
    """

    name: str
    url: str
    licence: str
    size: int | None = None
    digests: Mapping[str, str] = field(default_factory=dict)

    def mistake(self, path: Path) -> str | None:
        """What tells a file from the published one, as far as one can tell; None if nothing."""
        if self.size is not None and path.stat().st_size != self.size:
            return f"has {path.stat().st_size} bytes instead of {self.size}"
        for algorithm, published in self.digests.items():
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, algorithm).hexdigest()
            if digest != published:
                return f"has the {algorithm} {digest} instead of {published}"
        return None


def obtain(archive: Archive, folder: Path, *, only: str = "*") -> None:
    """Download an archive beside `folder`, and unpack it there; nothing to do if it holds files.

    What was downloaded before an interruption is kept in `NAME.part` and gone on with, if there is
    something to verify the whole by. An archive put there by hand is verified and taken.

    Args:
        folder: what the archive's one top folder becomes, or the place of its files.
        only: pattern on the archive's paths (its top folder included); the others stay out.

    Raises:
        UserError: it cannot be had, or is not what was published.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.parent / archive.name
    with FileLock(path.with_name(f".{path.name}.lock")):  # others that want it wait
        if folder.is_dir() and any(folder.iterdir()):
            return
        if not path.is_file():
            _download(archive, path)
        _verify(archive, path)
        _unpack(path, folder, only)
        path.unlink()


def _download(archive: Archive, path: Path) -> None:
    """Fetch the file into `path`, going on after interruptions while that brings something."""
    part = path.with_name(path.name + ".part")
    say(f"downloading {archive.url} ({archive.licence})")
    left = _ATTEMPTS
    while True:
        before = _length(part)
        try:
            _fetch(archive, part)
            break
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code < 500:
                raise UserError(
                    f"{archive.url}: the server answers {error.code} {error.reason}; download it "
                    f"with a browser from where it is now, to {path}"
                ) from None
            left = _ATTEMPTS if _length(part) > before else left - 1
            if not left:
                raise UserError(
                    f"{archive.url}: {error or type(error).__name__}; {_length(part)} bytes are in "
                    f"{part}; start again to go on, or download it with a browser to {path}"
                ) from None
            time.sleep(_PAUSE)
    part.replace(path)


def _fetch(archive: Archive, part: Path) -> None:
    """Append to `part` what it lacks.

    Raises:
        OSError, http.client.HTTPException: the connection broke, or the server refuses.
    """
    # Without a checksum, halves of different versions would go unnoticed.
    start = _length(part) if archive.digests else 0
    if start and start == archive.size:
        return
    request = urllib.request.Request(archive.url, headers={"User-Agent": "musicgen"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # the range begins past the end: the whole is there, or too much
            raise
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    quiet = not console.is_terminal
    with response, Progress(*columns, console=console, transient=True, disable=quiet) as progress:
        resumed = response.status == 206
        start = start if resumed else 0
        length = response.headers.get("Content-Length")
        total = archive.size if length is None else start + int(length)
        bar = progress.add_task(archive.name, total=total, completed=start)
        with part.open("ab" if resumed else "wb") as file:
            while block := response.read(_BLOCK):
                file.write(block)
                progress.advance(bar, len(block))
    if total is not None and _length(part) < total:
        raise http.client.IncompleteRead(b"", total - _length(part))


def _length(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _verify(archive: Archive, path: Path) -> None:
    mistake = archive.mistake(path)
    if mistake:
        path.unlink()
        raise UserError(
            f"{path} {mistake}; it is removed, start again, or get the published one from "
            f"{archive.url}"
        )


def _unpack(path: Path, folder: Path, only: str) -> None:
    """The archive's files as `folder`, which is whole or not there.

    Raises:
        UserError: the archive is broken, or would write outside of the folder.
    """
    temporary = folder.parent / f".unpacking-{uuid.uuid4().hex}"
    temporary.mkdir()
    try:
        try:
            _extract(path, temporary, only)
        except tarfile.FilterError as error:
            raise UserError(f"{path}: not unpacked, as it is unsafe: {error}") from None
        except _BROKEN as error:
            raise UserError(
                f"{path}: cannot be unpacked ({error}); remove it and start again"
            ) from None
        inside = list(temporary.iterdir())
        single = len(inside) == 1 and inside[0].is_dir()
        (inside[0] if single else temporary).rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _extract(path: Path, folder: Path, only: str) -> None:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:  # drops leading slashes and `..`, checks CRC-32
            archive.extractall(folder, [n for n in archive.namelist() if fnmatch(n, only)])
    else:
        with tarfile.open(path) as archive:
            members = (member for member in archive if fnmatch(member.name, only))
            archive.extractall(folder, members, filter="data")
