"""Encode a corpus in parallel: incremental, and safe to kill.

    remi-1f0c…/             what was encoded with the same settings, by their hash
        encoded.db          a `PieceStore`: the pieces by their name and files
        3ab9…/              a `TokenCache`: the pieces of one state of a corpus, and report.csv

A stopped preparation therefore continues, and a changed file costs only itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
from filelock import FileLock, Timeout
from rich.progress import MofNCompleteColumn

from musicgen.console import log, progress_bar, warn
from musicgen.data.corpora.base import SPLITS, Corpus, Piece
from musicgen.data.preparation.cache import TokenCache, build_cache
from musicgen.data.preparation.encoding import (
    EncodedPiece,
    Limits,
    PieceEncoder,
    PieceRecord,
    files_of,
)
from musicgen.data.preparation.store import PieceStore
from musicgen.data.preparation.summary import TABLE
from musicgen.data.preparation.workers import Failure, run_limited
from musicgen.errors import UserError, parameter_of
from musicgen.text import pluralize
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.chords.recognition import ChordSource
from musicgen.validation import check_choice, check_float, check_int

STORE, UNFINISHED = "encoded.db", ".new"
ENCODING = {"cache_dir", "chords", "limits", "prepare_workers", "test_fraction", "val_fraction"}
"""The settings of a loader that an `EncodedCorpus` takes."""

# Work that a killed preparation loses at most; pieces are in memory until then.
_COMMIT_SECONDS, _COMMIT_PIECES = 2.0, 4096


class EncodedCorpus:
    """A corpus and the tokens of its pieces, which are computed on first use.

    Unusable pieces are left out, and listed with the reason in the cache's `report.csv`, as is
    what the encoding left out. Pieces of the same music share a split, that of the first by name.

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
        check_int("prepare_workers", prepare_workers, none_means="one per core")
        self.corpus, self.tokenizer = corpus, tokenizer
        self.fractions = val_fraction, test_fraction
        self.num_workers = prepare_workers
        self.encoder = PieceEncoder(corpus, tokenizer, Limits(**limits), chords)
        settings = json.dumps(self.encoder.settings(), sort_keys=True)
        digest = hashlib.blake2b(settings.encode(), digest_size=8).hexdigest()
        self.folder = Path(cache_dir).expanduser() / f"{tokenizer.name}-{digest}"
        self._cache: TokenCache | None = None

    @classmethod
    def of(cls, corpus: Corpus, tokenizer: Tokenizer, loader: Mapping[str, Any]) -> EncodedCorpus:
        """Return a corpus encoded as a `loader` section says."""
        with parameter_of("loader"):
            return cls(corpus, tokenizer, **{name: loader[name] for name in ENCODING})

    @property
    def cache(self) -> TokenCache:
        """The encoded corpus; encodes what is new or has changed.

        Raises:
            UserError: no piece can be used.
        """
        if self._cache is None:
            job = _Preparation(self)
            self._cache = job.find_cache() or job.make_cache()
        return self._cache

    def find_cache(self) -> TokenCache | None:
        """Return the encoded corpus if there is one; encode and compose nothing."""
        if self._cache is None and self.corpus.root.exists() and self.folder.is_dir():
            self._cache = _Preparation(self).find_cache()
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


class _Preparation:
    """One preparation: the pieces as they are listed now."""

    def __init__(self, encoded: EncodedCorpus) -> None:
        self.encoded = encoded
        with parameter_of("data"):
            self.pieces = encoded.corpus.pieces()
        self.keys = np.fromiter(map(_key, self.pieces), "S24")  # empty: the files cannot be opened
        # Not stored, so that they are tried again: not the files failed, or they were not there.
        self.failed: dict[int, EncodedPiece] = {}

    @property
    def folder(self) -> Path:
        """The folder of the cache, named by a hash of everything that affects it."""
        failed = [(i, piece.record.skipped) for i, piece in sorted(self.failed.items())]
        settings = json.dumps((self.encoded.fractions, failed))
        digest = hashlib.blake2b(settings.encode(), digest_size=12)
        for piece, key in zip(self.pieces, self.keys, strict=True):
            digest.update(json.dumps((key.decode(), piece.group, piece.split)).encode())
        return self.encoded.folder / digest.hexdigest()

    def find_cache(self) -> TokenCache | None:
        """Return the cache if it exists and no file has changed; reads no file of the corpus."""
        return TokenCache(self.folder) if all(self.keys) and self.folder.is_dir() else None

    def make_cache(self) -> TokenCache:
        """Encode the new pieces, and build the cache of all."""
        parent = self.encoded.folder
        with _locked(parent), PieceStore.open(parent / STORE) as store:
            done = store.keys()
            if new := [i for i, key in enumerate(self.keys) if key.decode() not in done]:
                self._encode(new, store)
            folder = self.folder
            if not folder.is_dir():
                # Not by `tempfile`, whose folders other users cannot read.
                unfinished = parent / UNFINISHED
                shutil.rmtree(unfinished, ignore_errors=True)  # of a killed preparation
                unfinished.mkdir()
                encoded = (
                    self.failed.get(i) or store[key.decode()] for i, key in enumerate(self.keys)
                )
                records = partial(self._records, store)
                fractions = self.encoded.fractions
                lines = build_cache(unfinished, self.pieces, encoded, records, fractions)
                unfinished.rename(folder)
                for line in [*lines, f"in {folder}; every piece in {folder / TABLE}"]:
                    log(line)
        return TokenCache(folder)

    def _encode(self, indices: list[int], store: PieceStore) -> None:
        """Encode pieces, those of identical files once, and store them on the way."""
        encoder, limits = self.encoded.encoder, self.encoded.encoder.limits
        groups = [[i] for i in indices]
        if type(encoder.corpus).read_piece is Corpus.read_piece:  # which reads files by path alone
            groups = _with_identical_files(self.pieces, indices)
        results = run_limited(
            encoder.encode,
            [self.pieces[group[0]] for group in groups],
            num_workers=self.encoded.num_workers,
            max_seconds=limits.max_seconds,
            max_gigabytes=limits.max_gigabytes,
        )
        unstored: dict[str, EncodedPiece] = {}
        stored = start = time.monotonic()
        with progress_bar(MofNCompleteColumn()) as bar:
            bar_task = bar.add_task("encoding", total=len(indices))
            try:
                for number, result in results:
                    for i in groups[number]:
                        piece = _of_piece(result, self.pieces[i])
                        repeatable = not isinstance(result, Failure) or result.repeatable
                        if repeatable and self.keys[i]:
                            unstored[self.keys[i].decode()] = piece
                        else:
                            self.failed[i] = piece
                    bar.advance(bar_task, len(groups[number]))
                    now = time.monotonic()
                    if len(unstored) >= _COMMIT_PIECES or now - stored > _COMMIT_SECONDS:
                        store.add(unstored)
                        unstored, stored = {}, now
            finally:
                results.close()
                store.add(unstored)
        seconds, reused = time.monotonic() - start, len(self.pieces) - len(indices)
        log(
            f"{pluralize(len(indices), 'pieces')} read in {seconds:.1f} s, "
            f"{len(indices) / seconds:,.0f} a second" + (f"; {reused:,} reused" if reused else "")
        )

    def _records(self, store: PieceStore) -> Iterator[PieceRecord]:
        for i, key in enumerate(self.keys):
            yield self.failed[i].record if i in self.failed else store.record(key.decode())


def _of_piece(result: EncodedPiece | Failure, piece: Piece) -> EncodedPiece:
    """Return what is stored of a piece: what was encoded of its file, or why that failed."""
    if isinstance(result, Failure):
        return EncodedPiece(PieceRecord(piece.name, result.reason))
    return result._replace(record=replace(result.record, name=piece.name))


def _with_identical_files(pieces: Sequence[Piece], indices: Sequence[int]) -> list[list[int]]:
    """Return groups of pieces, in order: those whose single files have the same bytes and suffix.

    Only files of the same size are opened.
    """
    by_size = defaultdict[tuple[str, int], list[int]](list)
    groups = dict[object, list[int]]()
    for i in indices:
        path = Path(pieces[i].path)
        if path.is_file():
            by_size[path.suffix, path.stat().st_size].append(i)
        else:
            groups[i] = [i]
    for key, members in by_size.items():
        for i in members:
            content: object = i
            with suppress(OSError):
                if len(members) > 1:
                    content = key, hashlib.blake2b(Path(pieces[i].path).read_bytes()).digest()
            groups.setdefault(content, []).append(i)
    return sorted(groups.values())


def _key(piece: Piece) -> bytes:
    """Return a hash of a piece's name and of its files' names, sizes and times.

    Empty if they cannot be opened.
    """
    digest = hashlib.blake2b(os.fsencode(piece.name), digest_size=12)
    try:
        for file in files_of(piece):
            stat = file.stat()
            digest.update(os.fsencode(f"\0{file.name}\0{stat.st_size}\0{stat.st_mtime_ns}"))
    except OSError:
        return b""
    return digest.hexdigest().encode()


def _locked(folder: Path) -> AbstractContextManager[object]:
    """Return a context that keeps other processes from working in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        return lock.acquire(blocking=False)
    except Timeout:
        log(f"another process is working in {folder}: waiting for it")
        return lock.acquire()
    except NotImplementedError:
        problem = "its file system has no locks; set loader.cache_dir to a folder on another"
        raise UserError(f"{folder}: {problem}") from None
