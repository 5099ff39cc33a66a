"""Preparation of a corpus: pieces are encoded in parallel, once, and stored on disk.

    remi-1f0c…/             all pieces encoded with the same settings, named by a hash of them
        encoded.db          a `PieceStore`: the records of pieces, by their name and files
        encoded-5d2e….bin   the tokens of these pieces
        encoded-3-of-64.db  a store with a part of the corpus, see `EncodedCorpus.encode_shard`
        3ab9…/              a `TokenCache`: an index of one state of a corpus, and report.csv

A preparation that was stopped therefore continues, and only changed files are encoded again.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from filelock import FileLock, Timeout
from rich.progress import MofNCompleteColumn

from musicgen.console import log, progress_bar, warn
from musicgen.data.corpora.base import SPLITS, Corpus
from musicgen.data.preparation.cache import (
    REPORT,
    PieceStore,
    StoredPiece,
    TokenCache,
    build_cache,
)
from musicgen.data.preparation.encoding import (
    Limits,
    PieceRecord,
    encode_piece,
    groups_of_identical_files,
    key_of,
)
from musicgen.data.preparation.splits import EMPTY_SKETCH, Sketches
from musicgen.data.preparation.workers import Failure, run_limited
from musicgen.errors import ParameterError, UserError, parameter_of
from musicgen.text import pluralize, rate
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.chord_recognition import ChordSource
from musicgen.validation import check_choice, check_float, check_int, check_settings

ENCODING = {"cache_dir", "chords", "limits", "prepare_workers", "test_fraction", "val_fraction"}
"""The settings of a loader that are arguments of `EncodedCorpus`."""

# Increase it when the same files and settings give another cache, or records have other fields.
_FORMAT = 13
# Encoded pieces are stored at these intervals. A killed preparation loses later ones.
_COMMIT_SECONDS, _COMMIT_PIECES = 2.0, 4096


class EncodedCorpus:
    """A corpus and the tokens of its pieces, encoded on first use.

    Pieces that cannot be used are left out. `report.csv` in the folder of the cache has the
    reasons, and what the encoding changed in the others. Pieces with the same music are in
    the same split, the split of the first one by name.

    Args:
        corpus: the pieces.
        tokenizer: encodes them.
        cache_dir: folder of the token caches.
        val_fraction, test_fraction: share of the groups for validation and testing, if the corpus
            has no published split. With 0 there is no such split, see `split`.
        limits: limits of a piece, see `Limits`.
        prepare_workers: number of processes that encode the corpus; None: one per core.
        chords: source of the chords, if the tokenizer has chord tokens: `markers` of the scores,
            `recognised` from the notes, `auto` (recognised in scores without such markers), or
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
        if cache_dir is None:
            raise ParameterError("cache_dir", None, "expected a folder")
        check_int("prepare_workers", prepare_workers, none_means="one per core")
        self.corpus, self.tokenizer, self.chords = corpus, tokenizer, chords
        self.fractions, self.num_workers = (val_fraction, test_fraction), prepare_workers
        check_settings("limits", limits, Limits)
        self.limits = Limits(**limits)
        affects_encoding = {
            "format": _FORMAT,
            "tokenizer": tokenizer.name,
            "settings": tokenizer.settings(),
            "vocabulary": tokenizer.vocabulary.hash,
            "reader": corpus.reader_id(),
            "chords": chords if tokenizer.chords else None,
            "limits": asdict(self.limits),
        }
        settings = json.dumps(affects_encoding, sort_keys=True).encode()
        digest = hashlib.blake2b(settings, digest_size=8).hexdigest()
        self.folder = Path(cache_dir).expanduser() / f"{tokenizer.name}-{digest}"
        self._cache: TokenCache | None = None

    @classmethod
    def of(cls, corpus: Corpus, tokenizer: Tokenizer, loader: Mapping[str, Any]) -> EncodedCorpus:
        """Return a corpus that is encoded with the settings of a `loader`."""
        with parameter_of("loader"):
            return cls(corpus, tokenizer, **{name: loader[name] for name in ENCODING})

    @property
    def cache(self) -> TokenCache:
        """The encoded corpus; pieces that are new or have changed are encoded first.

        Raises:
            UserError: no piece can be used.
        """
        if self._cache is None:
            job = _Preparation(self)
            self._cache = job.find_cache() or job.make_cache()
        return self._cache

    def find_cache(self) -> TokenCache | None:
        """Return the encoded corpus if it exists, else None; nothing is encoded or composed."""
        if self._cache is None and self.corpus.root.exists() and self.folder.is_dir():
            self._cache = _Preparation(self).find_cache()
        return self._cache

    def open_cache(self, folder: Path) -> None:
        """Use a cache that another process has built; no file is listed.

        Raises:
            UserError: the folder does not exist.
        """
        if self._cache is None:
            if not folder.is_dir():
                problem = "the first process has built the cache there, but this one cannot see it"
                cure = "set loader.cache_dir to a folder that all machines share"
                raise UserError(f"{folder}: {problem}; {cure}")
            self._cache = TokenCache(folder)

    def encode_shard(self, shard: str) -> None:
        """Encode one of several equal parts of the corpus into a store that `cache` reads later.

        Args:
            shard: number of the part, from 1, and number of parts, such as 3/64.

        Raises:
            ParameterError: `shard` has another form.
        """
        match = re.fullmatch(r"(\d+)/(\d+)", shard)
        number, total = map(int, match.groups()) if match else (0, 0)
        if not 1 <= number <= total:
            raise ParameterError("shard", shard, "expected a part and their number, such as 3/64")
        job = _Preparation(self, slice(number - 1, None, total))
        path = self.folder / f"encoded-{number}-of-{total}.db"
        with _locked(path.with_suffix(".lock")), PieceStore.open(path) as store:
            done = store.keys()
            for other in self.folder.glob("encoded*.db"):
                if other != path:
                    with PieceStore.open(other) as others:
                        done |= others.keys()
            job.encode_missing(done, store)

    def split(self, name: str) -> list[int]:
        """Return the indices in the cache of the pieces of a split.

        Without pieces for testing they are those for validation, and without these all pieces.

        Raises:
            UserError: there is no such split, or it is empty in the published split of the corpus.
        """
        check_choice("split", name, SPLITS)
        pieces = self.cache.pieces(name)
        if pieces:
            return pieces
        if error := self.corpus.missing_split(name):
            raise UserError(error)
        missing = f"no {name} pieces among {len(self.cache)}"
        if name == "test" and (pieces := self.cache.pieces("val")):
            warn(f"{missing}: the validation pieces are used")
            return pieces
        warn(f"{missing}: all pieces are used, so the loss does not measure generalisation")
        return list(range(len(self.cache)))


class _Preparation:
    """One preparation of the pieces that a corpus has now.

    Args:
        part: the pieces to prepare, by default all.
    """

    def __init__(self, encoded: EncodedCorpus, part: slice = slice(None)) -> None:
        self.encoded = encoded
        with parameter_of("data"):
            self.pieces = encoded.corpus.pieces()[part]
        # Keys in the stores; empty if the files of a piece cannot be opened.
        self.keys = [key_of(piece) for piece in self.pieces]
        # Pieces that are not stored, so that they are tried again: their files were missing, or
        # they failed for a reason that is not in the files.
        self.failed: dict[int, PieceRecord] = {}

    @property
    def folder(self) -> Path:
        """Folder of the cache, named by a hash of everything that affects its content."""
        failed = [(i, record.skipped) for i, record in sorted(self.failed.items())]
        settings = json.dumps((self.encoded.fractions, failed))
        digest = hashlib.blake2b(settings.encode(), digest_size=12)
        for piece, key in zip(self.pieces, self.keys, strict=True):
            digest.update(json.dumps((key, piece.group, piece.split)).encode())
        return self.encoded.folder / digest.hexdigest()

    def find_cache(self) -> TokenCache | None:
        """Return the cache if it exists and no file has changed, without reading the files."""
        return _complete_cache(self.folder) if all(self.keys) else None

    def make_cache(self) -> TokenCache:
        """Encode the pieces that no store has; return a cache of all pieces. Log a summary."""
        parent = self.encoded.folder
        with ExitStack() as contexts:
            contexts.enter_context(_locked(parent / ".lock"))
            store = contexts.enter_context(PieceStore.open(parent / "encoded.db"))
            stores: dict[str, PieceStore] = {}  # by the keys of their pieces
            for path in sorted(parent.glob("encoded-*-of-*.db")):
                # Waits until the shard has been encoded.
                contexts.enter_context(_locked(path.with_suffix(".lock")))
                shard = contexts.enter_context(PieceStore.open(path))
                stores |= dict.fromkeys(shard.keys(), shard)
            self.encode_missing({*stores, *store.keys()}, store)
            stores |= dict.fromkeys(store.keys(), store)
            folder = self.folder
            if (cache := _complete_cache(folder)) is not None:
                return cache
            # Not by `tempfile`, as other users cannot read its folders.
            unfinished = parent / ".new"
            shutil.rmtree(unfinished, ignore_errors=True)  # left by a killed preparation
            unfinished.mkdir()
            stored = partial(self._stored, stores)
            lines = build_cache(unfinished, self.pieces, stored, self.encoded.fractions)
            shutil.rmtree(folder, ignore_errors=True)  # an incomplete cache, without its tokens
            unfinished.rename(folder)
        for line in [*lines, f"in {folder}; every piece in {folder / REPORT}"]:
            log(line)
        return TokenCache(folder)

    def encode_missing(self, done: Set[str], store: PieceStore) -> None:
        """Encode the pieces whose keys are not in `done` into a store. Log their number.

        Identical files are encoded once.
        """
        new = [i for i, key in enumerate(self.keys) if key not in done]
        if not new:
            return
        corpus, limits = self.encoded.corpus, self.encoded.limits
        groups = [[i] for i in new]
        # `Corpus.read_piece` depends only on the path: identical files give the same score.
        if type(corpus).read_piece is Corpus.read_piece:
            groups = groups_of_identical_files(self.pieces, new)
        results = run_limited(
            partial(
                encode_piece,
                corpus=corpus,
                tokenizer=self.encoded.tokenizer,
                limits=limits,
                chords=self.encoded.chords,
            ),
            [self.pieces[group[0]] for group in groups],
            num_workers=self.encoded.num_workers,
            max_seconds=limits.max_seconds,
            max_gigabytes=limits.max_gigabytes,
        )
        unstored: list[tuple[dict[str, PieceRecord], Sketches, bytes]] = []
        stored = start = time.monotonic()
        with progress_bar(MofNCompleteColumn()) as bar:
            bar_task = bar.add_task("encoding", total=len(new))
            try:
                for number, result in results:
                    unstored.append(self._of_group(result, groups[number]))
                    bar.advance(bar_task, len(groups[number]))
                    now = time.monotonic()
                    if len(unstored) >= _COMMIT_PIECES or now - stored > _COMMIT_SECONDS:
                        store.add(unstored)
                        unstored, stored = [], now
            finally:
                results.close()
                store.add(unstored)
        seconds, reused = time.monotonic() - start, len(self.pieces) - len(new)
        log(
            f"{pluralize(len(new), 'pieces')} read in {seconds:.1f} s, {rate(len(new), seconds)}"
            + (f"; {reused:,} reused" if reused else "")
        )

    def _of_group(
        self, result: tuple[PieceRecord, Sketches, bytes] | Failure, group: Sequence[int]
    ) -> tuple[dict[str, PieceRecord], Sketches, bytes]:
        """Return what `PieceStore.add` takes for pieces with the same content.

        Pieces that are not stored are added to `failed`.
        """
        repeatable = True
        if isinstance(result, Failure):
            repeatable = result.repeatable
            result = PieceRecord("", result.reason), EMPTY_SKETCH, b""
        record, sketch, arrays = result
        records = {}
        for i in group:
            named = replace(record, name=self.pieces[i].name)
            if repeatable and self.keys[i]:
                records[self.keys[i]] = named
            else:
                self.failed[i] = named
        return records, sketch, arrays

    def _stored(self, stores: Mapping[str, PieceStore]) -> Iterator[StoredPiece]:
        """Yield all pieces, without their arrays."""
        for i, key in enumerate(self.keys):
            if i in self.failed:
                yield self.failed[i], EMPTY_SKETCH, "", 0
            else:
                yield stores[key][key]


def _complete_cache(folder: Path) -> TokenCache | None:
    """Return the cache in a folder if there is one and no file of it is missing."""
    try:
        return TokenCache(folder)
    except FileNotFoundError:
        return None


def _locked(path: Path) -> AbstractContextManager[object]:
    """Return a context that holds a lock file; wait if another process holds it.

    Raises:
        UserError: the file system has no locks.
    """
    folder = path.parent
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        return lock.acquire(blocking=False)
    except Timeout:
        log(f"another process is working in {folder}: waiting for it")
        return lock.acquire()
    except NotImplementedError:
        problem = "its file system has no locks; set loader.cache_dir to a folder on another"
        raise UserError(f"{folder}: {problem}") from None
