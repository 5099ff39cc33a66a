"""Encode one piece within limits, and identify the content of its files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Set
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from musicgen.data.corpora.base import Corpus, Piece
from musicgen.data.preparation.duplicates import NO_PASSAGE, SKETCH_SIZE, sketch
from musicgen.errors import UserError
from musicgen.tokenization.base import EncodingSummary, Tokenizer
from musicgen.tokenization.chords.recognition import ChordSource, with_chords

# Increment it when the same files and settings give another cache.
_FORMAT = 8
# Begins the content digest of files that were not read: too large, or not readable in time.
_UNREAD = "large-"
RETRY: list[float] = []


@dataclass(frozen=True)
class Limits:
    """Limits of a piece; one that exceeds them is left out and reported.

    Attributes:
        max_megabytes: size of its files.
        max_seconds, max_gigabytes: time and memory to read and encode it.
        max_tokens: tokens of its encoding. The tokenizer limits its length in bars.
        min_notes: notes that the vocabulary can represent.
    """

    max_megabytes: float
    max_seconds: float
    max_gigabytes: float
    max_tokens: int
    min_notes: int


@dataclass
class PieceRecord:
    """The result of preparing a piece, without its tokens.

    Attributes:
        digest: digest of name and content.
        skipped: reason why it was left out; empty if it was not.
        bar_length: in grid steps.
        num_tokens, num_bars: numbers of tokens and of crop starts.
        encoding: notes kept and lost.
        failed_under: limits of time and memory that it exceeded; other limits retry it. `RETRY` if
            the next preparation retries it in any case: its files could not be opened, or the
            failure was not theirs.
    """

    name: str
    digest: str
    skipped: str = ""
    bar_length: int = 0
    num_tokens: int = 0
    num_bars: int = 0
    encoding: EncodingSummary = field(default_factory=EncodingSummary)
    failed_under: list[float] | None = None


class EncodedPiece(NamedTuple):
    """A piece as stored in a cache; without tokens if it is left out.

    Attributes:
        record: the result of its preparation.
        tokens: [num_tokens].
        crop_starts: see `Tokenizer.crop_starts`. [num_bars, 2]
        sketch: sketch of its passages, see `duplicates`. [SKETCH_SIZE]
    """

    record: PieceRecord
    tokens: NDArray[np.uint16] = np.empty(0, np.uint16)
    crop_starts: NDArray[np.int32] = np.empty((0, 2), np.int32)
    sketch: NDArray[np.uint64] = np.full(SKETCH_SIZE, NO_PASSAGE, np.uint64)


@dataclass(frozen=True)
class PieceEncoder:
    """Reads and encodes pieces of a corpus, in any process.

    Attributes:
        chords: source of the chords, if the tokenizer has chords; see `with_chords`.
    """

    corpus: Corpus
    tokenizer: Tokenizer
    limits: Limits
    chords: ChordSource

    def settings(self) -> dict[str, Any]:
        """Return plain data: everything that affects the encoding of a piece."""
        limits = asdict(self.limits)
        # These do not change the encoding of a piece within them.
        del limits["max_seconds"], limits["max_gigabytes"]
        return {
            "format": _FORMAT,
            "tokenizer": self.tokenizer.name,
            "settings": self.tokenizer.settings(),
            "vocabulary": self.tokenizer.vocabulary.hash,
            "reader": self.corpus.reader_id(),
            "chords": self.chords if self.tokenizer.chords else None,
            "limits": limits,
        }

    def encode(self, piece: Piece, known_digests: Set[str]) -> tuple[str, EncodedPiece | None]:
        """Read and encode a piece; an unusable one gets a record with the reason.

        Returns:
            Its content digest, and the encoded piece unless its digest is one of `known_digests`.
        """
        content = content_digest(piece.path, self.limits.max_megabytes * 1e6)
        record = PieceRecord(piece.name, piece_digest(piece.name, content))
        if not content:
            record.failed_under = RETRY
        if record.digest in known_digests:
            return content, None
        try:
            if content.startswith(_UNREAD):
                raise UserError(f"larger than limits.max_megabytes={self.limits.max_megabytes:g}")
            return content, self._encode(piece, record)
        except UserError as error:
            reason = str(error).removeprefix(f"{piece.path}: ")
            record.skipped = reason.replace(str(piece.path), piece.name)
            return content, EncodedPiece(record)

    def _encode(self, piece: Piece, record: PieceRecord) -> EncodedPiece:
        """Encode a piece and fill its record; raise `UserError` if it cannot be used."""
        tokenizer, limits = self.tokenizer, self.limits
        score = self.corpus.read_piece(piece)
        if tokenizer.chords:
            score = with_chords(score, self.chords)
        tokens, summary = tokenizer.encode_with_summary(score)
        summary.rules = [*score.repairs, *summary.rules]
        record.encoding = summary
        if summary.notes_kept == 0:
            lost = f"no note that the {tokenizer.name} vocabulary can represent"
            raise UserError(f"{lost} ({summary.describe()})")
        if summary.notes_kept < limits.min_notes:
            raise UserError(f"fewer than limits.min_notes={limits.min_notes} notes")
        if len(tokens) > limits.max_tokens:
            raise UserError(f"more than limits.max_tokens={limits.max_tokens:,} tokens")
        record.bar_length = tokenizer.bar_length(score)
        starts = tokenizer.crop_starts(tokens, bar_length=record.bar_length)
        record.num_tokens, record.num_bars = len(tokens), len(starts)
        # 16 bits are enough for every vocabulary here, and halve the cache.
        assert len(tokenizer.vocabulary) <= np.iinfo(np.uint16).max
        arrays = tokens.astype(np.uint16), starts.astype(np.int32), sketch(score)
        return EncodedPiece(record, *arrays)


def content_digest(path: Path, max_bytes: float) -> str:
    """Return a digest of a piece's files: of their size if it exceeds `max_bytes`.

    Empty if they cannot be read.
    """
    digest = hashlib.blake2b(digest_size=12)
    try:
        files = _files(path)
        size = sum(file.stat().st_size for file in files)
        if size > max_bytes:
            return f"{_UNREAD}{size}"
        for file in files:
            digest.update(hashlib.blake2b(os.fsencode(file.name)).digest())
            digest.update(hashlib.blake2b(file.read_bytes()).digest())
    except OSError:
        return ""
    return digest.hexdigest()


def piece_digest(name: str, content: str) -> str:
    """Return a digest of a piece's name and content, which with the settings fix its encoding."""
    return hashlib.blake2b(os.fsencode(name) + b"\0" + content.encode(), digest_size=12).hexdigest()


def file_signature(path: Path) -> str:
    """Return a hash of sizes and times of a piece's files: while it is the same, so is the content.

    Empty if they cannot be read.
    """
    try:
        stats = [(file.name, file.stat()) for file in _files(path)]
    except OSError:
        return ""
    text = " ".join(f"{name}:{stat.st_size}:{stat.st_mtime_ns}" for name, stat in stats)
    return hashlib.blake2b(os.fsencode(text), digest_size=8).hexdigest()


def _files(path: Path) -> list[Path]:
    """Return the files of a piece, sorted by name."""
    return sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]
