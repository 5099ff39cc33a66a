"""Encode a corpus in parallel: incremental, safe to kill, shared by processes and machines.

Encoded pieces are found again by their name and content, in the caches of the same settings and in
the parts that a preparation writes on its way. A stopped preparation therefore continues, a changed
file costs only itself, and the parts of several machines make one cache. See `cache` for the files.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
from rich.progress import MofNCompleteColumn

from musicgen.console import log, progress_bar, warn
from musicgen.data.corpora.base import SPLITS, Corpus, Piece
from musicgen.data.preparation.cache import (
    FILES,
    INDEX,
    CacheStore,
    FileRow,
    TokenCache,
    atomic_folder,
    build_cache,
    content_of,
    write_part,
)
from musicgen.data.preparation.database import open_database
from musicgen.data.preparation.encoding import (
    RETRY,
    EncodedPiece,
    Limits,
    PieceEncoder,
    PieceRecord,
    content_digest,
    file_signature,
    piece_digest,
)
from musicgen.data.preparation.splits import Shard
from musicgen.data.preparation.starts import is_unchanged, look
from musicgen.data.preparation.summary import TABLE, WARNING, read_summary
from musicgen.data.preparation.workers import Failure, run_limited
from musicgen.errors import UserError, parameter_of
from musicgen.files import write_text
from musicgen.text import pluralize
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.chords.recognition import ChordSource
from musicgen.validation import check_choice, check_float

# Work that a killed preparation loses at most; pieces are in memory until then.
_PART_SECONDS, _PART_PIECES = 2.0, 4096
_UNSEEN = b"?"  # content of a piece that this process has not looked at


class EncodedCorpus:
    """A corpus and the tokens of its pieces, which are computed on first use.

    Unusable pieces are left out, and listed with the reason in the cache's `report.csv`, as are the
    notes that the encoding lost. Pieces of the same music share a split, that of the first by name.

    Args:
        cache_dir: folder of the token caches.
        val_fraction, test_fraction: parts of the corpus, by group, if it has no split of its own;
            0 makes no such split, and all pieces are used for it.
        limits: those of a piece, see `Limits`.
        prepare_workers: processes that encode the corpus; None uses one per core.
        chords: source of the chords, if the tokenizer has chords: the scores' `markers`, `auto`
            (recognised from the notes of scores without such markers), `recognised` (always), or
            `none`.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: Tokenizer,
        cache_dir: str | Path,
        *,
        val_fraction: float,
        test_fraction: float,
        limits: Mapping[str, Any],
        prepare_workers: int | None,
        chords: ChordSource,
    ) -> None:
        check_float("val_fraction", val_fraction, below=1)
        check_float("test_fraction", test_fraction, below=1 - val_fraction)
        check_choice("chords", chords, get_args(ChordSource))
        self.corpus, self.tokenizer = corpus, tokenizer
        self.cache_dir = Path(cache_dir).expanduser()
        self.fractions = val_fraction, test_fraction
        self.num_workers = prepare_workers
        self.encoder = PieceEncoder(corpus, tokenizer, Limits(**limits), chords)
        self.store = CacheStore(self.cache_dir, tokenizer.name, self.encoder.settings())
        self._cache: TokenCache | None = None

    @property
    def machine_limits(self) -> list[float]:
        """The limits of time and memory; a piece that failed under others is encoded again."""
        limits = self.encoder.limits
        return [float(limits.max_seconds), float(limits.max_gigabytes)]

    @cached_property
    def start(self) -> _Start:
        """Where this corpus's cache is found without listing it."""
        return _Start(self)

    @classmethod
    def of(cls, corpus: Corpus, tokenizer: Tokenizer, loader: Mapping[str, Any]) -> EncodedCorpus:
        """Return a corpus encoded as a `loader` section says."""
        names = ("val_fraction", "test_fraction", "chords", "limits", "prepare_workers")
        settings = {name: loader[name] for name in names}
        with parameter_of("loader"):
            return cls(corpus, tokenizer, loader["cache_dir"], **settings)

    @property
    def cache(self) -> TokenCache:
        """The encoded corpus; encodes it, or the part that is not encoded yet, if necessary.

        A corpus that looks unchanged is not listed; see `starts`.

        Raises:
            UserError: no piece can be used.
        """
        if self._cache is None:
            self._cache = self.start.find_cache()
            for line in self._cache.warnings if self._cache else ():
                warn(line)
        while self._cache is None:  # again if another process removed something meanwhile
            self.prepare_shard(Shard())
        return self._cache

    def find_cache(self) -> TokenCache | None:
        """Return the encoded corpus if there is one; encode, compose and download nothing."""
        if self._cache is None and self.corpus.root.exists() and self.cache_dir.is_dir():
            self._cache = self.start.find_cache() or _Preparation(self).find_cache()
        return self._cache

    def prepare_shard(self, shard: Shard) -> TokenCache | None:
        """Encode a part of the corpus; return the cache once all parts are done.

        All files of the corpus are compared with those of its cache.

        Raises:
            UserError: all parts are done, and no piece can be used.
        """
        job = _Preparation(self)
        self._cache = job.find_cache()
        if self._cache is None:
            job.encode(shard)
            self._cache = job.merge(shard)
        return self._cache

    def split(self, name: str) -> list[int]:
        """Return the cache's pieces of a split; all of them if the split is empty.

        Raises:
            UserError: there is no such split, or it is empty, and the corpus has a published split
                without it.
        """
        check_choice("split", name, SPLITS)
        pieces = self.cache.pieces(name)
        if pieces:
            return pieces
        if error := self.corpus.missing_split(name):
            raise UserError(error)
        warn(
            f"no {name} pieces among {len(self.cache)}: all pieces are used, so the loss does not "
            "measure generalisation"
        )
        return list(range(len(self.cache)))


class _Start:
    """The file that says where the cache of a corpus is, and how its folder looked.

    Its name is a hash of the corpus's settings, so that no piece needs to be listed.
    """

    def __init__(self, encoded: EncodedCorpus) -> None:
        corpus = encoded.corpus
        settings = [(name, pickle.dumps(value, 5)) for name, value in sorted(vars(corpus).items())]
        kind = f"{type(corpus).__module__}.{type(corpus).__qualname__}"
        text = repr((str(Path.cwd()), kind, settings, encoded.fractions, encoded.machine_limits))
        digest = hashlib.blake2b(os.fsencode(text), digest_size=12).hexdigest()
        self.folder = encoded.store.folder
        self.path = self.folder / "starts" / f"{digest}.json"

    def find_cache(self) -> TokenCache | None:
        """Return the cache if it exists and the corpus looks unchanged."""
        try:
            content = json.loads(self.path.read_bytes())
            folder, unchanged = self.folder / content["cache"], is_unchanged(content["state"])
        except (FileNotFoundError, ValueError, KeyError):  # there is none, or it is damaged
            return None
        return TokenCache(folder) if unchanged and folder.is_dir() else None


class _Preparation:
    """One preparation: the pieces, and the contents that this process has seen."""

    def __init__(self, encoded: EncodedCorpus) -> None:
        self.encoded, self.encoder = encoded, encoded.encoder
        self.store, self.machine_limits = encoded.store, encoded.machine_limits
        self.start = encoded.start
        self.listed_ns = time.time_ns()
        self.pieces = encoded.corpus.pieces()
        signatures = (file_signature(piece.path) for piece in self.pieces)
        self.signatures = np.fromiter(signatures, "S16")
        self.contents = np.full(len(self.pieces), _UNSEEN, "S24")  # digests

    def find_cache(self) -> TokenCache | None:
        """Return the cache if it exists and no file has changed; reads no file of the corpus."""
        with suppress(FileNotFoundError), open_database(self.store.folder / FILES) as files:
            contents = [self._content(i, files) for i in range(len(self.pieces))]
            folder = self._cache_folder(self._digests(content or "" for content in contents))
            if None not in contents and folder.is_dir():
                return self._finished(folder)
        return None

    def encode(self, shard: Shard) -> None:
        """Encode the new pieces of a part of the corpus."""
        with self.store.lock(f"parts/{shard.number}-of-{shard.count}") as folder:
            new = []
            with self.store.lock(), self.store.find_encoded(self.machine_limits) as encoded:
                known = encoded.done()
                for i, piece in enumerate(self.pieces):
                    if not shard.contains(piece.name):
                        continue
                    content = self._content(i, encoded.files)
                    if content is not None and piece_digest(piece.name, content) in known:
                        self.contents[i] = content
                    else:
                        new.append(i)
            if new:
                self._run(new, known, folder)

    def _run(self, indices: list[int], known_digests: set[str], folder: Path) -> None:
        """Encode pieces, and write parts on the way."""
        limits = self.encoder.limits
        results = run_limited(
            partial(self.encoder.encode, known_digests=known_digests),
            [self.pieces[i] for i in indices],
            num_workers=min(self.encoded.num_workers or num_cores(), 1 + len(indices) // 32),
            max_seconds=limits.max_seconds,
            max_gigabytes=limits.max_gigabytes,
        )
        done: dict[int, EncodedPiece | None] = {}
        written = start = time.monotonic()
        with progress_bar(MofNCompleteColumn()) as bar:
            bar_task = bar.add_task("encoding", total=len(indices))
            try:
                for number, result in results:
                    i = indices[number]
                    if isinstance(result, Failure):
                        result = self._failed(self.pieces[i], result)
                    self.contents[i], done[i] = result
                    bar.advance(bar_task)
                    if len(done) == _PART_PIECES or time.monotonic() - written > _PART_SECONDS:
                        write_part(folder, done.values(), self._file_table(done))
                        done, written = {}, time.monotonic()
            finally:
                results.close()
                if done:
                    write_part(folder, done.values(), self._file_table(done))
        seconds = time.monotonic() - start
        reused = np.count_nonzero(self.contents != _UNSEEN) - len(indices)
        log(
            f"{pluralize(len(indices), 'pieces')} read in {seconds:.1f} s, "
            f"{len(indices) / seconds:,.0f} a second" + (f"; {reused:,} reused" if reused else "")
        )

    def _failed(self, piece: Piece, failure: Failure) -> tuple[str, EncodedPiece]:
        content = content_digest(piece.path, -1)  # without reading: that may have been the failure
        record = PieceRecord(
            piece.name,
            piece_digest(piece.name, content),
            skipped=failure.reason,
            failed_under=self.machine_limits if failure.repeatable else RETRY,
        )
        return content, EncodedPiece(record)

    def merge(self, shard: Shard) -> TokenCache | None:
        """Build and return the cache; None if some of its pieces are not encoded yet."""
        with self.store.lock(), self.store.find_encoded(self.machine_limits) as encoded:
            missing = 0
            to_retry = {}
            for i, piece in enumerate(self.pieces):
                content = self._content(i, encoded.files)
                digest = piece_digest(piece.name, content or "")
                limits = None if content is None else encoded.failed_under(digest)
                self.contents[i] = _UNSEEN if limits is None else content
                missing += limits is None
                if limits == (json.dumps(RETRY),):
                    to_retry[i] = encoded[digest].record
            if missing:
                log(
                    f"part {shard} is done; of {len(self.pieces)} pieces, {missing} are in parts "
                    "that are not: the last part merges them"
                )
                return None
            # The same content may give another result for these.
            reasons = [(record.name, record.skipped) for record in to_retry.values()]
            target = self._cache_folder(self._digests(map(bytes.decode, self.contents)), reasons)
            if not (target / INDEX).exists():
                try:
                    with atomic_folder(target) as new:
                        digests = self._digests(map(bytes.decode, self.contents))
                        pieces = (encoded[digest] for digest in digests)
                        build_cache(new, self.pieces, pieces, self.encoded.fractions)
                except FileNotFoundError:
                    # A process without locks has built the same cache and removed the parts.
                    if not (target / INDEX).exists():
                        raise
                for line in read_summary(target):
                    log(line, "yellow" if line.startswith(WARNING) else None)
                log(f"in {target}; every piece in {target / TABLE}")
            # Before the table: without it, the parts of a killed process are found and removed.
            self.store.remove_parts(self._path(i) for i in range(len(self.pieces)))
            finished = (i for i in range(len(self.pieces)) if i not in to_retry)
            self.store.add_finished_files(self._file_table(finished))
            return TokenCache(target) if to_retry else self._finished(target)

    def _finished(self, folder: Path) -> TokenCache:
        """Return the cache, which the next start finds without listing the corpus."""
        root = getattr(self.encoded.corpus, "root", None)
        if state := look(root, self.pieces, self.listed_ns):
            with suppress(OSError):  # the folder of somebody else
                write_text(self.start.path, json.dumps({"cache": folder.name, "state": state}))
        return TokenCache(folder)

    def _path(self, i: int) -> bytes:
        return os.fsencode(self.pieces[i].path.absolute())

    def _file_table(self, indices: Iterable[int]) -> Iterator[FileRow]:
        for i in indices:
            yield self._path(i), self.signatures[i].decode(), self.contents[i].decode()

    def _content(self, i: int, files: sqlite3.Connection) -> str | None:
        """Return the content digest of a piece seen by this process, or unchanged since another."""
        if self.contents[i] != _UNSEEN:
            return self.contents[i].decode()
        return content_of(files, self._path(i), self.signatures[i].decode())

    def _digests(self, contents: Iterable[str]) -> Iterator[str]:
        pairs = zip(self.pieces, contents, strict=True)
        return (piece_digest(piece.name, content) for piece, content in pairs)

    def _cache_folder(
        self, digests: Iterable[str], reasons: Sequence[tuple[str, str]] = ()
    ) -> Path:
        """Return the folder of the cache, named by a hash of everything that affects it."""
        settings = [self.encoded.fractions, self.machine_limits, reasons]
        digest = hashlib.blake2b(json.dumps(settings).encode(), digest_size=12)
        for piece, own in zip(self.pieces, digests, strict=True):
            digest.update(json.dumps((own, piece.group, piece.split)).encode())
        return self.store.folder / digest.hexdigest()


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
