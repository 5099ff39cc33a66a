"""Encode a corpus in parallel: incremental, safe to kill, shared by processes and machines.

Encoded pieces are found again by their name and content, in the caches of the same settings and in
the parts that a preparation writes on its way. A stopped preparation therefore continues, a changed
file costs only itself, and the parts of several machines make one cache. See `CacheStore` for the
files.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from rich import progress
from rich.text import Text

from musicgen.console import log, progress_bar
from musicgen.data.corpora.base import Piece
from musicgen.data.preparation.cache_store import CacheStore, FileTable, write_part
from musicgen.data.preparation.encoding import (
    EncodedPiece,
    PieceRecord,
    content_digest,
    encode_piece,
    file_signature,
    piece_digest,
)
from musicgen.data.preparation.piece_store import atomic_folder, remove_damaged
from musicgen.data.preparation.request import PreparationRequest
from musicgen.data.preparation.splits import Shard
from musicgen.data.preparation.summary import SUMMARY, TABLE
from musicgen.data.preparation.token_cache import INDEX, TokenCache, build_cache
from musicgen.data.preparation.workers import Failure, run_limited
from musicgen.text import pluralize

# Increment it when the same files and settings give another cache.
_FORMAT = 5
# A killed preparation loses at most this many seconds of work, or tokens.
_PART_SECONDS, _PART_TOKENS = 2.0, 2**24


def prepare_corpus(request: PreparationRequest) -> TokenCache:
    """Encode a corpus, or the part of it that is not encoded yet.

    Unusable pieces are left out, and listed with the reason in the cache's `report.csv`, as are the
    notes that the encoding lost. Pieces of the same music share a split, that of the first by name.

    Raises:
        ValueError: no piece can be used.
    """
    job = _Job(request)
    cache = job.find_cache()
    while cache is None:
        job.encode(Shard())
        cache = job.merge()  # None if another process removed something meanwhile
    return cache


def find_cache(request: PreparationRequest) -> TokenCache | None:
    """Return the cache of a corpus; None if there is none, or a file of it has changed."""
    return _Job(request).find_cache()


def prepare_shard(request: PreparationRequest, shard: Shard) -> TokenCache | None:
    """Encode a part of a corpus; return the cache if all other parts are done.

    Raises:
        ValueError: all parts are done, and no piece can be used.
    """
    job = _Job(request)
    cache = job.find_cache()
    if cache is None:
        job.encode(shard)
        cache = job.merge()
    if cache is None:
        log(
            f"part {shard} is done; of {len(job.pieces)} pieces, {job.num_missing} are in parts "
            "that are not: the last part merges them"
        )
    return cache


class _Job:
    """A preparation: the pieces, and the contents that this process has seen."""

    def __init__(self, request: PreparationRequest) -> None:
        self.request, tokenizer = request, request.tokenizer
        self.pieces = request.corpus.pieces()
        self.signatures = [file_signature(piece.path) for piece in self.pieces]
        self.paths = [str(piece.path.absolute()) for piece in self.pieces]
        self.contents: dict[int, str] = {}  # content digests by index of piece
        self.num_missing = 0
        limits = asdict(request.limits)
        # These do not change the encoding of a piece within them.
        self.machine_limits = [limits.pop("max_seconds"), limits.pop("max_gigabytes")]
        settings = {
            "format": _FORMAT,
            "tokenizer": tokenizer.name,
            "settings": tokenizer.settings(),
            "vocabulary": tokenizer.vocabulary.hash,
            "reader": request.corpus.reader_id(),
            "chords": request.chords if tokenizer.chords else None,
            "limits": limits,
        }
        self.store = CacheStore(request.cache_dir, tokenizer.name, settings)

    def find_cache(self) -> TokenCache | None:
        """Return the cache if it exists and no file has changed; reads no file of the corpus."""
        files = self.store.finished_files()
        contents = [self._unchanged_content(i, files) for i in range(len(self.pieces))]
        if None in contents:
            return None
        folder = self._cache_folder([content or "" for content in contents])
        if not folder.is_dir() or remove_damaged(folder):
            return None
        return TokenCache(folder)

    def encode(self, shard: Shard) -> None:
        """Encode the new pieces of a part of the corpus."""
        with self.store.lock(f"parts/{shard.number}-of-{shard.count}") as folder:
            with self.store.lock():
                encoded, files = self.store.find_encoded(self._to_retry)
            known = {
                digest
                for digest, (store, index) in encoded.items()
                if not self._to_retry(store.records[index])
            }
            new = []
            for i, piece in enumerate(self.pieces):
                if i in self.contents or not shard.contains(piece.name):
                    continue
                content = self._unchanged_content(i, files)
                if content is not None and piece_digest(piece.name, content) in known:
                    self.contents[i] = content
                else:
                    new.append(i)
            if new:
                self._run(new, known, folder)

    def _run(self, indices: list[int], known_digests: set[str], folder: Path) -> None:
        """Encode pieces, and write parts on the way."""
        limits = self.request.limits
        results = run_limited(
            partial(encode_piece, request=self.request, known_digests=known_digests),
            [self.pieces[i] for i in indices],
            num_workers=min(self.request.num_workers or _num_cores(), 1 + len(indices) // 32),
            max_seconds=limits.max_seconds,
            max_gigabytes=limits.max_gigabytes,
        )
        done: dict[int, EncodedPiece | None] = {}
        num_tokens, start = 0, time.monotonic()
        written = start
        with progress_bar(progress.MofNCompleteColumn(), _SpeedColumn()) as bar:
            bar_task = bar.add_task("encoding", total=len(indices))
            try:
                for number, result in results:
                    i = indices[number]
                    if isinstance(result, Failure):
                        result = self._failed(self.pieces[i], result)
                    self.contents[i], piece = result
                    done[i] = piece
                    bar.advance(bar_task)
                    num_tokens += piece.record.num_tokens if piece else 0
                    if time.monotonic() - written > _PART_SECONDS or num_tokens > _PART_TOKENS:
                        write_part(folder, done.values(), self._file_table(done))
                        done, num_tokens, written = {}, 0, time.monotonic()
            finally:
                results.close()
                if done:
                    write_part(folder, done.values(), self._file_table(done))
        seconds = time.monotonic() - start
        reused = len(self.contents) - len(indices)
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
            failed_under_limits=self.machine_limits if failure.repeatable else None,
            retry=not failure.repeatable,
        )
        return content, EncodedPiece(record)

    def merge(self) -> TokenCache | None:
        """Build and return the cache; None if some of its pieces are not encoded yet."""
        with self.store.lock():
            encoded, files = self.store.find_encoded(self._to_retry)
            sources = []
            for i, piece in enumerate(self.pieces):
                content = self.contents.pop(i, self._unchanged_content(i, files))
                if content is not None and (digest := piece_digest(piece.name, content)) in encoded:
                    self.contents[i] = content
                    sources.append(encoded[digest])
            self.num_missing = len(self.pieces) - len(sources)
            if self.num_missing:
                return None
            records = [store.records[index] for store, index in sources]
            target = self._cache_folder([self.contents[i] for i in range(len(records))], records)
            if not (target / INDEX).exists():
                with atomic_folder(target) as new:
                    build_cache(
                        new, self.pieces, sources, self.request.tokenizer, self.request.fractions
                    )
                for line in (target / SUMMARY).read_text("utf-8", "surrogateescape").splitlines():
                    log(line.encode("utf-8", "replace").decode())
                log(f"in {target}; every piece in {target / TABLE}")
            # Before the table: without it, the parts of a killed process are found and removed.
            self.store.remove_parts(set(self.paths))
            finished = [i for i, record in enumerate(records) if not record.retry]
            self.store.add_finished_files(self._file_table(finished))
            return TokenCache(target)

    def _to_retry(self, record: PieceRecord) -> bool:
        return record.retry or record.failed_under_limits not in (None, self.machine_limits)

    def _file_table(self, indices: Iterable[int]) -> FileTable:
        return {self.paths[i]: [self.signatures[i], self.contents[i]] for i in indices}

    def _unchanged_content(self, i: int, files: FileTable) -> str | None:
        """Return a piece's content digest in a table, if its files have not changed since."""
        signature, content = files.get(self.paths[i], ("", ""))
        return content if signature and signature == self.signatures[i] else None

    def _cache_folder(self, contents: Sequence[str], records: Sequence[PieceRecord] = ()) -> Path:
        """Return the folder of the cache, named by a hash of everything that affects it."""
        identity = [
            self.request.fractions,
            self.machine_limits,
            [
                (piece_digest(piece.name, content), piece.group, piece.split)
                for piece, content in zip(self.pieces, contents, strict=True)
            ],
            # The same content may give another result for these.
            [(record.name, record.skipped) for record in records if record.retry],
        ]
        digest = hashlib.blake2b(json.dumps(identity).encode(), digest_size=12)
        return self.store.folder / digest.hexdigest()


def _num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _SpeedColumn(progress.ProgressColumn):
    """Files per second."""

    def render(self, task: progress.Task) -> Text:
        return Text(f"{task.finished_speed or task.speed or 0:.0f} files/s")
