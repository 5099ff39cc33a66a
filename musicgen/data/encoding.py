"""One file to tokens, and all that a report says of it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from musicgen.data.duplicates import SKETCH_SIZE, sketch
from musicgen.errors import UserError
from musicgen.midi import Score
from musicgen.tokenization.base import EncodingReport, Tokenizer
from musicgen.values import number


@dataclass(frozen=True)
class Limits:
    """What a piece may cost and give; one beyond is left out, and reported.

    Attributes:
        max_megabytes: size of its files.
        max_seconds, max_gigabytes: time and memory to read and encode it.
        max_tokens: of its encoding. Its length in bars is the tokenizer's own limit.
        min_notes: that the vocabulary holds.

    Raises:
        UserError: a limit that is no positive number.
    """

    max_megabytes: float = 20
    max_seconds: float = 60
    max_gigabytes: float = 4
    max_tokens: int = 1_000_000
    min_notes: int = 1

    def __post_init__(self) -> None:
        for limit in fields(self):
            number(f"data.limits.{limit.name}", getattr(self, limit.name), above=0)

    @classmethod
    def of(cls, limits: Limits | Mapping[str, Any] | None) -> Limits:
        """From plain data.

        Raises:
            UserError: there is no such limit.
        """
        if isinstance(limits, Limits):
            return limits
        names = [limit.name for limit in fields(cls)]
        for name in limits or {}:
            if name not in names:
                raise UserError(f"data.limits.{name}: no such limit; there are {', '.join(names)}")
        return cls(**(limits or {}))


@dataclass
class Record:
    """What preparing a piece found out, but for the tokens.

    Attributes:
        name: the piece's.
        digest: of name and content.
        skipped: why it was left out; empty if it was not.
        bar_length: in grid steps.
        num_tokens, num_bars: sizes in tokens and in places where crops may begin.
        notes_read, notes_kept, dropped, clipped, rules: see `EncodingReport`.
        limits: those of time and memory that it went beyond; a change of them gives another try.
        retry: whether the next preparation tries again: its files could not be opened, or reading
            them failed in a way that is not theirs.
    """

    name: str
    digest: str
    skipped: str = ""
    bar_length: int = 0
    num_tokens: int = 0
    num_bars: int = 0
    notes_read: int = 0
    notes_kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    clipped: dict[str, int] = field(default_factory=dict)
    rules: list[str] = field(default_factory=list)
    limits: list[float] | None = None
    retry: bool = False

    @property
    def encoding(self) -> EncodingReport:
        return EncodingReport(
            self.notes_read, self.notes_kept, self.dropped, self.clipped, self.rules
        )


class Encoded(NamedTuple):
    """A piece as a cache holds it.

    Attributes:
        record: about it.
        tokens: [num_tokens].
        places: where crops may begin, see `Tokenizer.crop_places`. [num_bars, 2]
        sketch: of its passages, see `duplicates`. [SKETCH_SIZE]
    """

    record: Record
    tokens: NDArray[np.uint16]
    places: NDArray[np.int32]
    sketch: NDArray[np.uint64]

    @classmethod
    def nothing(cls, record: Record) -> Encoded:
        """A piece that is left out."""
        nothing = np.full(SKETCH_SIZE, np.iinfo(np.uint64).max)
        return cls(record, np.empty(0, np.uint16), np.empty((0, 2), np.int32), nothing)


class Task(NamedTuple):
    """A piece to encode, unless its content is among those known by these digests."""

    name: str
    path: Path
    known: frozenset[str]


class Reading(NamedTuple):
    """What came of a task: the content's digest, and the encoding if it was not known."""

    content: str
    encoded: Encoded | None


def encode(
    task: Task, *, read: Callable[[Path], Score], tokenizer: Tokenizer, limits: Limits
) -> Reading:
    """Read and encode a piece; what cannot be used says why."""
    content = content_of(task.path, limits)
    digest = digest_of(task.name, content)
    if digest in task.known:
        return Reading(content, None)
    record = Record(task.name, digest, retry=content == "")
    if content.startswith(_TOO_LARGE):
        record.skipped = f"larger than {limits.max_megabytes:g} MB; see data.limits"
        return Reading(content, Encoded.nothing(record))
    try:
        score = read(task.path)
    except UserError as error:
        reason = str(error).removeprefix(f"{task.path}: ").replace(str(task.path), task.name)
        record.skipped = reason
        return Reading(content, Encoded.nothing(record))
    tokens, report = tokenizer.encode_with_report(score)
    record.notes_read, record.notes_kept = report.notes_read, report.notes_kept
    record.dropped, record.clipped = report.dropped, report.clipped
    record.rules = [*score.repairs, *report.rules]
    if report.notes_kept == 0:
        record.skipped = (
            f"no note that the {tokenizer.name} vocabulary holds ({record.encoding.summary()})"
        )
    elif report.notes_kept < limits.min_notes:
        record.skipped = f"fewer than {limits.min_notes} notes; see data.limits"
    elif len(tokens) > limits.max_tokens:
        record.skipped = f"more than {limits.max_tokens:,} tokens; see data.limits"
    if record.skipped:
        return Reading(content, Encoded.nothing(record))
    record.bar_length = tokenizer.bar_length(score)
    places = tokenizer.crop_places(tokens, bar_length=record.bar_length)
    record.num_tokens, record.num_bars = len(tokens), len(places)
    # 16 bits hold every vocabulary here, and halve the cache.
    assert len(tokenizer.vocabulary) <= np.iinfo(np.uint16).max
    encoded = Encoded(record, tokens.astype(np.uint16), places.astype(np.int32), sketch(score))
    return Reading(content, encoded)


_TOO_LARGE = "large-"


def content_of(path: Path, limits: Limits) -> str:
    """A digest of a piece's files; empty if they cannot be read."""
    digest = hashlib.blake2b(digest_size=12)
    try:
        files = files_of(path)
        size = sum(file.stat().st_size for file in files)
        if size > limits.max_megabytes * 1e6:
            return f"{_TOO_LARGE}{size}"
        for file in files:
            digest.update(hashlib.blake2b(os.fsencode(file.name)).digest())
            digest.update(hashlib.blake2b(file.read_bytes()).digest())
    except OSError:
        return ""
    return digest.hexdigest()


def unread(path: Path) -> str:
    """What stands for the content of files that must not be read."""
    try:
        return f"unread-{sum(file.stat().st_size for file in files_of(path))}"
    except OSError:
        return ""


def digest_of(name: str, content: str) -> str:
    """A digest of a piece's name and content: what decides its encoding, given the settings."""
    return hashlib.blake2b(os.fsencode(name) + b"\0" + content.encode(), digest_size=12).hexdigest()


def signature_of(path: Path) -> str:
    """Sizes and times of a piece's files: while they stay, so does the content."""
    try:
        stats = [(file.name, file.stat()) for file in files_of(path)]
    except OSError:
        return ""
    return " ".join(f"{name}:{stat.st_size}:{stat.st_mtime_ns}" for name, stat in stats)


def files_of(path: Path) -> list[Path]:
    """The files of a piece, sorted by name."""
    return sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]
