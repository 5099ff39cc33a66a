"""Encoding of one piece, within limits, and the identity of its files."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from musicgen.data.corpora.base import Corpus, Piece
from musicgen.data.preparation.splits import EMPTY_SKETCH, Sketches, sketch
from musicgen.errors import UserError
from musicgen.midi import file_of
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.chord_recognition import ChordSource, with_chords
from musicgen.tokenization.whole_bars import without_long_gaps
from musicgen.validation import check_float


@dataclass(frozen=True)
class Limits:
    """Limits of a piece. Pieces beyond them are left out and reported.

    Attributes:
        max_megabytes: largest size of the files.
        max_seconds, max_gigabytes: most time and memory to read and encode a piece.
        max_tokens: largest number of tokens. The tokenizer limits the number of bars.
        min_notes: smallest number of notes that the vocabulary can represent.
    """

    max_megabytes: float
    max_seconds: float
    max_gigabytes: float
    max_tokens: int
    min_notes: int

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            check_float(f"limits.{name}", value, above=0)


@dataclass
class PieceRecord:
    """The result of preparing a piece, without its tokens.

    Attributes:
        skipped: reason why the piece is left out; "" if it is used.
        bar_length: number of grid steps in a bar.
        num_tokens, num_bars: number of tokens, and of bars at which crops may start.
        notes_read, notes_kept: number of notes in the file, and in the tokens.
        report: what the encoding changed or left out, in one line.
    """

    name: str
    skipped: str = ""
    bar_length: int = 0
    num_tokens: int = 0
    num_bars: int = 0
    notes_read: int = 0
    notes_kept: int = 0
    report: str = ""


def encode_piece(
    piece: Piece, *, corpus: Corpus, tokenizer: Tokenizer, limits: Limits, chords: ChordSource
) -> tuple[PieceRecord, Sketches, bytes]:
    """Return the record of a piece, the sketch of its passages, and its arrays as bytes.

    The arrays are the crop starts [num_bars, 2] as int32 (see `Crops.starts`), then the tokens
    [num_tokens] as uint16. The number of bytes is a multiple of four, so that the arrays of the
    next piece are aligned when `TokenCache` maps them. A piece that cannot be used has none; its
    record has the reason.

    Args:
        chords: source of the chords, if the tokenizer has chord tokens; see `with_chords`.
    """
    record = PieceRecord(piece.name)
    try:
        if sum(file.stat().st_size for file in files_of(piece)) > limits.max_megabytes * 1e6:
            raise UserError(f"larger than limits.max_megabytes={limits.max_megabytes:g}")
        score, _ = without_long_gaps(tokenizer.normalise_rhythm(corpus.read_piece(piece)))
        if tokenizer.chords:
            score = with_chords(score, chords)
        tokens, report = tokenizer.encode_with_report(score)
        summary = report.summary()
        summary.rules = [*score.repairs, *summary.rules]
        record.notes_read, record.notes_kept = summary.notes_read, summary.notes_kept
        record.report = summary.describe()
        if record.notes_kept == 0:
            reason = f"no note that the {tokenizer.name} vocabulary can represent"
            raise UserError(f"{reason} ({record.report})")
        if record.notes_kept < limits.min_notes:
            raise UserError(f"fewer than limits.min_notes={limits.min_notes} notes")
        if len(tokens) > limits.max_tokens:
            raise UserError(f"more than limits.max_tokens={limits.max_tokens:,} tokens")
        record.bar_length = tokenizer.bar_length(score)
        starts = tokenizer.crops.starts(tokens, bar_length=record.bar_length)
    except (UserError, OSError) as error:
        reason = str(error).removeprefix(f"{piece.path}: ")
        record.skipped = reason.replace(str(piece.path), piece.name)
        return record, EMPTY_SKETCH, b""
    record.num_tokens, record.num_bars = len(tokens), len(starts)
    # 16 bits are enough for every vocabulary here, and halve the cache.
    assert len(tokenizer.vocabulary) <= np.iinfo(np.uint16).max
    arrays = starts.astype(np.int32).tobytes() + tokens.astype(np.uint16).tobytes()
    return record, sketch(score), arrays + bytes(-len(arrays) % 4)


def files_of(piece: Piece) -> list[Path]:
    """Return the files of a piece, sorted by name."""
    path = piece.path
    if path.is_dir():
        return sorted(file for file in path.iterdir() if file.is_file())
    return [file_of(path)]


def key_of(piece: Piece) -> str:
    """Return a hash of the name of a piece and of the names, sizes and times of its files.

    It is "" if a file cannot be opened.
    """
    digest = hashlib.blake2b(os.fsencode(piece.name), digest_size=12)
    try:
        for file in files_of(piece):
            stat = file.stat()
            digest.update(os.fsencode(f"\0{file.name}\0{stat.st_size}\0{stat.st_mtime_ns}"))
    except OSError:
        return ""
    return digest.hexdigest()


def groups_of_identical_files(pieces: Sequence[Piece], indices: Sequence[int]) -> list[list[int]]:
    """Return groups of pieces with identical files, in order.

    Files are identical if their bytes and suffixes are the same. Only files of the same size are
    opened. A piece with several files is a group by itself.

    Args:
        indices: indices of the pieces to group.
    """
    by_size, groups = defaultdict[object, list[int]](list), defaultdict[object, list[int]](list)
    for i in indices:
        path = pieces[i].path
        by_size[(path.suffix, path.stat().st_size) if path.is_file() else i].append(i)
    for key, members in by_size.items():
        for i in members:
            content: object = i
            with suppress(OSError):
                if len(members) > 1:
                    content = key, hashlib.blake2b(pieces[i].path.read_bytes()).digest()
            groups[content].append(i)
    return sorted(groups.values())
