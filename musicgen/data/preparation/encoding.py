"""Encoding of one piece, within limits."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from musicgen.data.corpora.base import Corpus, Piece
from musicgen.data.preparation.duplicates import NO_PASSAGE, SKETCH_SIZE, sketch
from musicgen.errors import UserError
from musicgen.midi import file_of
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.chords.recognition import ChordSource, with_chords
from musicgen.tokenization.whole_bars import without_long_gaps
from musicgen.validation import check_float

# Increase it when the same files and settings give another cache, or records have other fields.
_FORMAT = 13


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
        skipped: reason why the piece was left out; "": it was not.
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


class EncodedPiece(NamedTuple):
    """An encoded piece; without tokens if it is left out.

    Attributes:
        record: the result of its preparation.
        tokens: [num_tokens].
        crop_starts: see `Crops.starts`. [num_bars, 2]
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
        chords: source of the chords, if the tokenizer has chord tokens; see `with_chords`.
    """

    corpus: Corpus
    tokenizer: Tokenizer
    limits: Limits
    chords: ChordSource

    def settings(self) -> dict[str, Any]:
        """Return everything that affects the encoding of a piece, as plain data."""
        return {
            "format": _FORMAT,
            "tokenizer": self.tokenizer.name,
            "settings": self.tokenizer.settings(),
            "vocabulary": self.tokenizer.vocabulary.hash,
            "reader": self.corpus.reader_id(),
            "chords": self.chords if self.tokenizer.chords else None,
            "limits": asdict(self.limits),
        }

    def encode(self, piece: Piece) -> EncodedPiece:
        """Return an encoded piece; if it cannot be used, its record has the reason."""
        record = PieceRecord(piece.name)
        try:
            return self._encode(piece, record)
        except (UserError, OSError) as error:
            reason = str(error).removeprefix(f"{piece.path}: ")
            record.skipped = reason.replace(str(piece.path), piece.name)
            return EncodedPiece(record)

    def _encode(self, piece: Piece, record: PieceRecord) -> EncodedPiece:
        """Return an encoded piece, with its record filled.

        Raises:
            UserError: it cannot be used.
        """
        tokenizer, limits = self.tokenizer, self.limits
        if sum(file.stat().st_size for file in files_of(piece)) > limits.max_megabytes * 1e6:
            raise UserError(f"larger than limits.max_megabytes={limits.max_megabytes:g}")
        score, _ = without_long_gaps(tokenizer.normalise_rhythm(self.corpus.read_piece(piece)))
        if tokenizer.chords:
            score = with_chords(score, self.chords)
        tokens, report = tokenizer.encode_with_report(score)
        summary = report.summary()
        summary.rules = [*score.repairs, *summary.rules]
        record.notes_read, record.notes_kept = summary.notes_read, summary.notes_kept
        record.report = summary.describe()
        if summary.notes_kept == 0:
            reason = f"no note that the {tokenizer.name} vocabulary can represent"
            raise UserError(f"{reason} ({record.report})")
        if summary.notes_kept < limits.min_notes:
            raise UserError(f"fewer than limits.min_notes={limits.min_notes} notes")
        if len(tokens) > limits.max_tokens:
            raise UserError(f"more than limits.max_tokens={limits.max_tokens:,} tokens")
        record.bar_length = tokenizer.bar_length(score)
        starts = tokenizer.crops.starts(tokens, bar_length=record.bar_length)
        record.num_tokens, record.num_bars = len(tokens), len(starts)
        # 16 bits are enough for every vocabulary here, and halve the cache.
        assert len(tokenizer.vocabulary) <= np.iinfo(np.uint16).max
        return EncodedPiece(
            record,
            tokens=tokens.astype(np.uint16),
            crop_starts=starts.astype(np.int32),
            sketch=sketch(score),
        )


def files_of(piece: Piece) -> list[Path]:
    """Return the files of a piece, sorted by name."""
    path = piece.path
    return (
        sorted(file for file in path.iterdir() if file.is_file())
        if path.is_dir()
        else [file_of(path)]
    )
