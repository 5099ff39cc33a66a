"""Encode one piece, and identify the content of its files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from musicgen.data.corpora.base import Piece
from musicgen.data.preparation.duplicates import NO_PASSAGE, SKETCH_SIZE, sketch
from musicgen.data.preparation.request import PreparationRequest
from musicgen.errors import UserError
from musicgen.tokenization.base import EncodingSummary
from musicgen.tokenization.chords.recognition import with_chords

# Begins the content digest of files that were not read: too large, or not readable in time.
_UNREAD = "large-"


@dataclass
class PieceRecord:
    """The result of preparing a piece, without its tokens.

    Attributes:
        digest: digest of name and content.
        skipped: reason why it was left out; empty if it was not.
        bar_length: in grid steps.
        num_tokens, num_bars: numbers of tokens and of crop starts.
        encoding: notes kept and lost.
        failed_under_limits: limits of time and memory that it exceeded; other limits retry it.
        retry: whether the next preparation retries it: its files could not be opened, or the
            failure was not theirs.
    """

    name: str
    digest: str
    skipped: str = ""
    bar_length: int = 0
    num_tokens: int = 0
    num_bars: int = 0
    encoding: EncodingSummary = field(default_factory=EncodingSummary)
    failed_under_limits: list[float] | None = None
    retry: bool = False


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


def encode_piece(
    piece: Piece, request: PreparationRequest, known_digests: Set[str]
) -> tuple[str, EncodedPiece | None]:
    """Read and encode a piece; an unusable one gets a record with the reason.

    Returns:
        Its content digest, and the encoded piece unless its digest is one of `known_digests`.
    """
    tokenizer, limits = request.tokenizer, request.limits
    content = content_digest(piece.path, limits.max_megabytes * 1e6)
    digest = piece_digest(piece.name, content)
    if digest in known_digests:
        return content, None
    record = PieceRecord(piece.name, digest, retry=content == "")
    skipped = content, EncodedPiece(record)
    if content.startswith(_UNREAD):
        record.skipped = f"larger than limits.max_megabytes={limits.max_megabytes:g}"
        return skipped
    try:
        score = request.corpus.read_piece(piece)
        if tokenizer.chords:
            score = with_chords(score, request.chords)
    except UserError as error:
        reason = str(error).removeprefix(f"{piece.path}: ")
        record.skipped = reason.replace(str(piece.path), piece.name)
        return skipped
    tokens, summary = tokenizer.encode_with_summary(score)
    summary.rules = [*score.repairs, *summary.rules]
    record.encoding = summary
    if summary.notes_kept == 0:
        record.skipped = (
            f"no note that the {tokenizer.name} vocabulary can represent ({summary.describe()})"
        )
    elif summary.notes_kept < limits.min_notes:
        record.skipped = f"fewer than limits.min_notes={limits.min_notes} notes"
    elif len(tokens) > limits.max_tokens:
        record.skipped = f"more than limits.max_tokens={limits.max_tokens:,} tokens"
    if record.skipped:
        return skipped
    record.bar_length = tokenizer.bar_length(score)
    starts = tokenizer.crop_starts(tokens, bar_length=record.bar_length)
    record.num_tokens, record.num_bars = len(tokens), len(starts)
    # 16 bits are enough for every vocabulary here, and halve the cache.
    assert len(tokenizer.vocabulary) <= np.iinfo(np.uint16).max
    arrays = tokens.astype(np.uint16), starts.astype(np.int32), sketch(score)
    return content, EncodedPiece(record, *arrays)


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
    """Return sizes and times of a piece's files: as long as they are the same, so is the content.

    Empty if they cannot be read.
    """
    try:
        stats = [(file.name, file.stat()) for file in _files(path)]
    except OSError:
        return ""
    return " ".join(f"{name}:{stat.st_size}:{stat.st_mtime_ns}" for name, stat in stats)


def _files(path: Path) -> list[Path]:
    """Return the files of a piece, sorted by name."""
    return sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]
