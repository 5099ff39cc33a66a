"""Files to a token cache: in parallel, only what is new, safe to kill and to share.

A piece is found again by its name and content: in the caches of the same settings, and in the parts
that a preparation has written on its way. So a stopped one goes on, a changed file costs only
itself, and the parts of several machines make one cache. `home` says what lies where.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from rich import progress as bars
from rich.text import Text

from musicgen.counts import counted
from musicgen.data.build import build_cache
from musicgen.data.cache import INDEX, TokenCache
from musicgen.data.encoding import (
    Encoded,
    Limits,
    Reading,
    Record,
    Task,
    digest_of,
    encode,
    signature_of,
    unread,
)
from musicgen.data.home import Home, Table, console, say, write_part
from musicgen.data.report import SUMMARY, TABLE
from musicgen.data.shelf import atomic_folder
from musicgen.data.splits import SPLITS, Piece
from musicgen.data.workers import Failure, run_limited
from musicgen.errors import UserError
from musicgen.midi import Score
from musicgen.tokenization.base import Tokenizer

__all__ = ["SPLITS", "Piece", "Shard", "TokenCache", "prepare", "prepare_shard"]

# Raise it when the same files and settings would give another cache.
_FORMAT = 4
# What a killed preparation loses at most, in seconds of work and in tokens.
_PART_SECONDS, _PART_TOKENS = 2.0, 2**24
# These limits do not change what a piece within them is encoded as.
_OF_MACHINES = ("max_seconds", "max_gigabytes")


@dataclass(frozen=True)
class Shard:
    """The `number`th of `count` parts of a corpus, from 1; a piece's name decides its part."""

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From `3/8`.

        Raises:
            UserError: it is none.
        """
        number, _, count = text.partition("/")
        if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
            raise UserError(f"shard={text}: give the part and the number of parts, such as 3/8")
        return cls(int(number), int(count))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def holds(self, piece: Piece) -> bool:
        digest = hashlib.blake2b(os.fsencode(piece.name), digest_size=8).digest()
        return int.from_bytes(digest) % self.count == self.number - 1


WHOLE = Shard()


def prepare(
    pieces: Sequence[Piece],
    read: Callable[[Path], Score],
    tokenizer: Tokenizer,
    folder: Path,
    *,
    fractions: tuple[float, float],
    limits: Limits | None = None,
    num_workers: int | None = None,
) -> TokenCache:
    """Encode a corpus, as far as that has not been done before.

    What cannot be used is left out, and listed with its reason in the cache's `report.csv`, as is
    what notes lost on the way to tokens. Pieces of the same music share a split, that of the first
    by name.

    Args:
        pieces: the corpus.
        read: reads a piece's path; a function, or a `partial` of one, that can be pickled.
        tokenizer: encodes the scores.
        folder: where caches live.
        fractions: parts of the groups that go to validation and to test.
        limits: what a piece may cost and give.
        num_workers: processes; None takes one per core that this process may use.

    Raises:
        UserError: no piece can be used.
    """
    corpus = _Corpus(pieces, read, tokenizer, folder, fractions, limits or Limits())
    cache = corpus.finished()
    while cache is None:
        corpus.encode(WHOLE, num_workers)
        cache = corpus.merge()  # None where another process took something away meanwhile
    return cache


def prepare_shard(
    shard: Shard,
    pieces: Sequence[Piece],
    read: Callable[[Path], Score],
    tokenizer: Tokenizer,
    folder: Path,
    *,
    fractions: tuple[float, float],
    limits: Limits | None = None,
    num_workers: int | None = None,
) -> TokenCache | None:
    """Encode a part of a corpus; see `prepare`.

    Args:
        pieces: the whole corpus.

    Returns:
        The cache, if this was the last part of it.
    """
    corpus = _Corpus(pieces, read, tokenizer, folder, fractions, limits or Limits())
    cache = corpus.finished()
    if cache is None:
        corpus.encode(shard, num_workers)
        cache = corpus.merge()
    if cache is None:
        say(
            f"part {shard} is done; of {len(pieces)} pieces, {corpus.num_missing} are in parts "
            "that are not: the last one merges them"
        )
    return cache


@dataclass
class _Corpus:
    """A corpus on its way to a cache."""

    pieces: Sequence[Piece]
    read: Callable[[Path], Score]
    tokenizer: Tokenizer
    folder: Path
    fractions: tuple[float, float]
    limits: Limits
    # Content by index of piece, as far as this process has seen it.
    contents: dict[int, str] = field(default_factory=dict)
    num_missing: int = 0

    @cached_property
    def home(self) -> Home:
        settings = {
            "format": _FORMAT,
            "tokenizer": self.tokenizer.name,
            "settings": self.tokenizer.settings(),
            "vocabulary": self.tokenizer.vocabulary.hash,
            "reader": _identity(self.read),
            "limits": {k: v for k, v in asdict(self.limits).items() if k not in _OF_MACHINES},
        }
        return Home(self.folder, self.tokenizer.name, settings)

    @cached_property
    def signatures(self) -> list[str]:
        return [signature_of(piece.path) for piece in self.pieces]

    def finished(self) -> TokenCache | None:
        """The cache, if it is there and no file has changed; reads none of them."""
        table = self.home.remembered()
        contents = [self._listed(i, table) for i in range(len(self.pieces))]
        if None in contents:
            return None
        target = self._target([content or "" for content in contents])
        return TokenCache(target) if (target / INDEX).exists() else None

    def encode(self, shard: Shard, num_workers: int | None) -> None:
        """Encode what is new in a part of the corpus."""
        with self.home.part(f"{shard.number}-of-{shard.count}") as folder:
            with self.home.alone():
                library, table = self.home.library(self._to_retry), self.home.table()
            known: dict[str, set[str]] = {}
            for digest, (shelf, place) in library.items():
                record = shelf.records[place]
                if not self._to_retry(record):
                    known.setdefault(record.name, set()).add(digest)
            tasks = {}
            for i, piece in enumerate(self.pieces):
                if i in self.contents or not shard.holds(piece):
                    continue
                digests = frozenset(known.get(piece.name, ()))
                content = self._listed(i, table)
                if content is not None and digest_of(piece.name, content) in digests:
                    self.contents[i] = content
                else:
                    tasks[i] = Task(piece.name, piece.path, digests)
            if tasks:
                self._run(tasks, folder, num_workers or _num_cores())

    def _run(self, tasks: dict[int, Task], folder: Path, num_workers: int) -> None:
        """Encode pieces, given by index, and write parts on the way."""
        function = partial(encode, read=self.read, tokenizer=self.tokenizer, limits=self.limits)
        indices = list(tasks)
        results = run_limited(
            function,
            list(tasks.values()),
            num_workers=min(num_workers, 1 + len(tasks) // 32),
            max_seconds=self.limits.max_seconds,
            max_gigabytes=self.limits.max_gigabytes,
        )
        done: dict[int, Encoded | None] = {}
        size, began = 0, time.monotonic()
        written = began
        with _progress_bar() as progress:
            bar = progress.add_task("encoding", total=len(tasks))
            try:
                for place, result in results:
                    i = indices[place]
                    reading = (
                        self._failed(tasks[i], result) if isinstance(result, Failure) else result
                    )
                    self.contents[i], done[i] = reading
                    progress.advance(bar)
                    size += reading.encoded.record.num_tokens if reading.encoded else 0
                    if time.monotonic() - written > _PART_SECONDS or size > _PART_TOKENS:
                        self._write_part(folder, done)
                        done, size, written = {}, 0, time.monotonic()
            finally:
                results.close()
                if done:
                    self._write_part(folder, done)
        seconds = time.monotonic() - began
        reused = len(self.contents) - len(tasks)
        say(
            f"{counted(len(tasks), 'pieces')} read in {seconds:.1f} s, "
            f"{len(tasks) / seconds:,.0f} a second" + (f"; {reused:,} as before" if reused else "")
        )

    def _failed(self, task: Task, failure: Failure) -> Reading:
        content = unread(task.path)  # reading it may have been the trouble
        record = Record(
            task.name,
            digest_of(task.name, content),
            skipped=failure.reason,
            limits=self._machine_limits() if failure.by_limit else None,
            retry=not failure.by_limit,
        )
        return Reading(content, Encoded.nothing(record))

    def _write_part(self, folder: Path, done: dict[int, Encoded | None]) -> None:
        encoded = [piece for piece in done.values() if piece is not None]
        table = {self._key(i): [self.signatures[i], self.contents[i]] for i in done}
        write_part(folder, encoded, table)

    def merge(self) -> TokenCache | None:
        """The cache, if all of its pieces are there."""
        with self.home.alone():
            library, table = self.home.library(self._to_retry), self.home.table()
            contents = []
            for i, piece in enumerate(self.pieces):
                content = self.contents.get(i, self._listed(i, table))
                if content is None or digest_of(piece.name, content) not in library:
                    self.contents.pop(i, None)
                else:
                    contents.append(content)
            self.num_missing = len(self.pieces) - len(contents)
            if self.num_missing:
                return None
            found = [
                library[digest_of(piece.name, content)]
                for piece, content in zip(self.pieces, contents, strict=True)
            ]
            records = [shelf.records[place] for shelf, place in found]
            target = self._target(contents, records)
            if not (target / INDEX).exists():
                with atomic_folder(target) as new:
                    build_cache(new, self.pieces, found, self.tokenizer, self.fractions)
                self._announce(target)
            # Before the table: without it, a killed process' parts are found and removed again.
            self.home.remove_parts({self._key(i) for i in range(len(self.pieces))})
            self.home.remember(
                {
                    self._key(i): [self.signatures[i], contents[i]]
                    for i, record in enumerate(records)
                    if not record.retry
                }
            )
            return TokenCache(target)

    def _announce(self, folder: Path) -> None:
        for line in (folder / SUMMARY).read_text("utf-8", "surrogateescape").splitlines():
            say(line.encode("utf-8", "replace").decode())
        say(f"in {folder}; every piece in {folder / TABLE}")

    def _to_retry(self, record: Record) -> bool:
        return record.retry or record.limits not in (None, self._machine_limits())

    def _machine_limits(self) -> list[float]:
        return [getattr(self.limits, name) for name in _OF_MACHINES]

    def _key(self, piece: int) -> str:
        return str(self.pieces[piece].path.absolute())

    def _listed(self, piece: int, table: Table) -> str | None:
        """What a piece holds by a table, if its files have not changed since."""
        signature, content = table.get(self._key(piece), ("", ""))
        return content if signature and signature == self.signatures[piece] else None

    def _target(self, contents: Sequence[str], records: Sequence[Record] = ()) -> Path:
        """The folder of the cache: named after all that decides what is in it."""
        decisive = [
            self.fractions,
            self._machine_limits(),
            [
                (digest_of(piece.name, content), piece.group, piece.split)
                for piece, content in zip(self.pieces, contents, strict=True)
            ],
            # These may end otherwise with the same content.
            [(record.name, record.skipped) for record in records if record.retry],
        ]
        digest = hashlib.blake2b(json.dumps(decisive).encode(), digest_size=12)
        return self.home.folder / digest.hexdigest()


def _identity(read: Callable[..., Any]) -> str:
    """A name for a reader, with the settings of a `partial`; the same in every process."""
    if isinstance(read, partial):
        settings = {
            name: _identity(value) if callable(value) else value
            for name, value in sorted(read.keywords.items())
        }
        return f"{_identity(read.func)}{(read.args, settings)}"
    return f"{read.__module__}.{read.__qualname__}"


def _num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Speed(bars.ProgressColumn):
    """Files a second."""

    def render(self, task: bars.Task) -> Text:
        return Text(f"{task.finished_speed or task.speed or 0:.0f} files/s")


def _progress_bar() -> bars.Progress:
    return bars.Progress(
        *bars.Progress.get_default_columns()[:3],
        bars.MofNCompleteColumn(),
        _Speed(),
        bars.TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )
