"""Encode a corpus in parallel: incremental, and safe to kill.

    remi-1f0c…/             what was encoded with the same settings, by their hash
        encoded.db          a `PieceStore`: the pieces by their name and content
        3ab9…/              a `TokenCache`: the pieces of one state of a corpus, and report.csv

A stopped preparation therefore continues, and a changed file costs only itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
from filelock import FileLock, Timeout
from rich.progress import MofNCompleteColumn

from musicgen.console import log, progress_bar, warn
from musicgen.data.corpora.base import SPLITS, Corpus, Piece
from musicgen.data.preparation.cache import TokenCache, atomic_folder, build_cache
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
from musicgen.data.preparation.store import PieceStore
from musicgen.data.preparation.summary import SUMMARY, TABLE
from musicgen.data.preparation.workers import Failure, run_limited
from musicgen.errors import UserError, parameter_of
from musicgen.text import pluralize
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.chords.recognition import ChordSource
from musicgen.validation import check_choice, check_float

STORE = "encoded.db"

# Work that a killed preparation loses at most; pieces are in memory until then.
_COMMIT_SECONDS, _COMMIT_PIECES = 2.0, 4096


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
        names = ("val_fraction", "test_fraction", "chords", "limits", "prepare_workers")
        settings = {name: loader[name] for name in names}
        with parameter_of("loader"):
            return cls(corpus, tokenizer, loader["cache_dir"], **settings)

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
        """Return the encoded corpus if there is one; encode, compose and download nothing."""
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
        self.encoded, self.encoder = encoded, encoded.encoder
        limits = self.encoder.limits
        self.limits = [float(limits.max_seconds), float(limits.max_gigabytes)]
        self.pieces = encoded.corpus.pieces()
        signatures = (file_signature(piece.path) for piece in self.pieces)
        self.signatures = np.fromiter(signatures, "S16")
        self.contents = np.zeros(len(self.pieces), "S24")  # digests
        self.failed: dict[int, EncodedPiece] = {}  # not stored, so that they are tried again

    def find_cache(self) -> TokenCache | None:
        """Return the cache if it exists and no file has changed; reads no file of the corpus."""
        path = self.encoded.folder / STORE
        if path.is_file():
            with PieceStore.open(path) as store:
                new = self._look_up(store, store.done(self.limits))
                if not new and (folder := self._cache_folder()).is_dir():
                    return TokenCache(folder)
        return None

    def make_cache(self) -> TokenCache:
        """Encode the new pieces, and build the cache of all."""
        with _locked(self.encoded.folder) as parent, PieceStore.open(parent / STORE) as store:
            done = store.done(self.limits)
            if new := self._look_up(store, done):
                self._encode(new, store, done)
            folder = self._cache_folder()
            if not folder.is_dir():
                with atomic_folder(folder) as new_folder:
                    encoded = (
                        self.failed.get(i) or store[digest]
                        for i, digest in enumerate(self._digests())
                    )
                    records = partial(self._records, store)
                    build_cache(new_folder, self.pieces, encoded, records, self.encoded.fractions)
                for line in (folder / SUMMARY).read_text("utf-8", "surrogateescape").splitlines():
                    log(line)
                log(f"in {folder}; every piece in {folder / TABLE}")
        return TokenCache(folder)

    def _look_up(self, store: PieceStore, done: Set[str]) -> list[int]:
        """Find the contents of files that have not changed; return the pieces to be encoded."""
        new = []
        for i, piece in enumerate(self.pieces):
            content = store.content(self._path(i), self.signatures[i].decode())
            if content is not None and piece_digest(piece.name, content) in done:
                self.contents[i] = content
            else:
                new.append(i)
        return new

    def _encode(self, indices: list[int], store: PieceStore, done: Set[str]) -> None:
        """Encode pieces, and store them on the way."""
        limits = self.encoder.limits
        results = run_limited(
            partial(self.encoder.encode, known_digests=done),
            [self.pieces[i] for i in indices],
            num_workers=self.encoded.num_workers,
            max_seconds=limits.max_seconds,
            max_gigabytes=limits.max_gigabytes,
        )
        found: dict[int, EncodedPiece | None] = {}
        stored = start = time.monotonic()
        with progress_bar(MofNCompleteColumn()) as bar:
            bar_task = bar.add_task("encoding", total=len(indices))
            try:
                for number, result in results:
                    i = indices[number]
                    if isinstance(result, Failure):
                        result = self._left_out(self.pieces[i], result)
                    self.contents[i], piece = result
                    if piece is not None and piece.record.failed_under == RETRY:
                        self.failed[i] = piece
                    else:
                        found[i] = piece
                    bar.advance(bar_task)
                    now = time.monotonic()
                    if len(found) == _COMMIT_PIECES or now - stored > _COMMIT_SECONDS:
                        self._store(found, store)
                        found, stored = {}, now
            finally:
                results.close()
                self._store(found, store)
        seconds, reused = time.monotonic() - start, len(self.pieces) - len(indices)
        log(
            f"{pluralize(len(indices), 'pieces')} read in {seconds:.1f} s, "
            f"{len(indices) / seconds:,.0f} a second" + (f"; {reused:,} reused" if reused else "")
        )

    def _left_out(self, piece: Piece, failure: Failure) -> tuple[str, EncodedPiece]:
        content = content_digest(piece.path, -1)  # without reading: that may have been the failure
        record = PieceRecord(
            piece.name,
            piece_digest(piece.name, content),
            skipped=failure.reason,
            failed_under=self.limits if failure.repeatable else RETRY,
        )
        return content, EncodedPiece(record)

    def _store(self, found: Mapping[int, EncodedPiece | None], store: PieceStore) -> None:
        files = (
            (self._path(i), self.signatures[i].decode(), self.contents[i].decode()) for i in found
        )
        store.add((piece for piece in found.values() if piece is not None), files)

    def _path(self, i: int) -> bytes:
        return os.fsencode(self.pieces[i].path.absolute())

    def _digests(self) -> Iterator[str]:
        pairs = zip(self.pieces, self.contents, strict=True)
        return (piece_digest(piece.name, content.decode()) for piece, content in pairs)

    def _records(self, store: PieceStore) -> Iterator[PieceRecord]:
        for i, digest in enumerate(self._digests()):
            yield self.failed[i].record if i in self.failed else store.record(digest)

    def _cache_folder(self) -> Path:
        """Return the folder of the cache, named by a hash of everything that affects it."""
        reasons = [(i, piece.record.skipped) for i, piece in sorted(self.failed.items())]
        settings = [self.encoded.fractions, self.limits, reasons]
        digest = hashlib.blake2b(json.dumps(settings).encode(), digest_size=12)
        for piece, own in zip(self.pieces, self._digests(), strict=True):
            digest.update(json.dumps((own, piece.group, piece.split)).encode())
        return self.encoded.folder / digest.hexdigest()


@contextmanager
def _locked(folder: Path) -> Iterator[Path]:
    """Keep other processes from working in a folder; remove what killed ones left."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        log(f"another process is working in {folder}: waiting for it")
        lock.acquire()
    except NotImplementedError:
        problem = "its file system has no locks; set loader.cache_dir to a folder on another"
        raise UserError(f"{folder}: {problem}") from None
    try:
        for path in folder.glob(".new-*"):
            shutil.rmtree(path)
        yield folder
    finally:
        lock.release()
