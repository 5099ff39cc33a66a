"""What a corpus contains, and what each tokenizer keeps of it: a look at some of its pieces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from musicgen.data.corpora.base import Corpus, Piece, evenly_spaced
from musicgen.data.preparation.encoding import Limits
from musicgen.data.preparation.workers import Failure, run_limited
from musicgen.errors import UserError
from musicgen.metrics.key import find_key
from musicgen.metrics.metre import NO_GRID, grid_clarity
from musicgen.midi import Score, notes_by_role, pitched_notes
from musicgen.midi.roles import DRUMS
from musicgen.text import pluralize
from musicgen.tokenization import REMI, Chorale, EncodingSummary, Tokenizer

SAMPLE = 100  # pieces that are read


class PieceLook(NamedTuple):
    """A piece in figures.

    Attributes:
        grid: how clear it is, see `grid_clarity`.
        kept: by tokenizer, the share of notes that it keeps with their instruments; half of it if
            it reads the piece in another metre.
        tokens: by tokenizer.
    """

    minutes: float
    bars: int
    key: str
    metre: str
    grid: float
    kept: dict[str, float]
    tokens: dict[str, int]


@dataclass
class Look:
    """A corpus by a sample of its pieces.

    Attributes:
        num_pieces: of the corpus.
        pieces: those of the sample that can be read.
        failures: reasons why the others cannot.
    """

    num_pieces: int
    pieces: list[PieceLook]
    failures: list[str]

    def kept(self, tokenizer: str) -> float:
        """Return the mean over pieces of the share of notes that a tokenizer keeps."""
        return float(np.mean([piece.kept[tokenizer] for piece in self.pieces]))

    def tokens(self, tokenizer: str) -> int:
        """Estimate the tokens of the corpus."""
        factor = self.num_pieces / (len(self.pieces) + len(self.failures))
        return round(factor * sum(piece.tokens[tokenizer] for piece in self.pieces))

    def lines(self) -> list[str]:
        """Describe the corpus."""
        read, minutes = len(self.pieces), sum(piece.minutes for piece in self.pieces)
        sampled = read + len(self.failures) < self.num_pieces
        of = f"of {read + len(self.failures)} files of {self.num_pieces:,}, " if sampled else ""
        lines = [
            f"{of}{pluralize(read, 'pieces')}, {pluralize(round(minutes), 'minutes')}, "
            f"{pluralize(sum(piece.bars for piece in self.pieces), 'bars')}",
            f"keys: {_ranking(piece.key for piece in self.pieces)}; "
            f"metres: {_ranking(piece.metre for piece in self.pieces)}",
        ]
        if self.failures:
            lines.append(f"unreadable: {len(self.failures)}, such as {self.failures[0]}")
        if free := sum(piece.grid < NO_GRID for piece in self.pieces):
            lines.append(
                f"without a grid: {pluralize(free, 'pieces')}, performances not played to the "
                "file's beat. Their notes go to the nearest position of a bar that is none; "
                "files with tracked beats teach more"
            )
        return lines


def look_at(corpus: Corpus, tokenizers: Mapping[str, Tokenizer], limits: Limits) -> Look:
    """Read up to `SAMPLE` pieces, spread over the corpus, within the limits of a piece.

    Raises:
        UserError: no piece can be read.
    """
    pieces = corpus.pieces()
    chosen = evenly_spaced(pieces, SAMPLE)
    results = run_limited(
        partial(look_at_piece, corpus, tokenizers),
        chosen,
        num_workers=2,
        max_seconds=limits.max_seconds,
        max_gigabytes=limits.max_gigabytes,
    )
    looks = [look for _, look in sorted(results, key=itemgetter(0))]
    look = Look(
        len(pieces),
        [piece for piece in looks if isinstance(piece, PieceLook)],
        [failure.reason for failure in looks if isinstance(failure, Failure)],
    )
    if not look.pieces:
        reason = f"; the first: {look.failures[0]}" if look.failures else ""
        raise UserError(f"{corpus.root}: none of {len(pieces)} files can be read as music{reason}")
    return look


def look_at_piece(
    corpus: Corpus, tokenizers: Mapping[str, Tokenizer], piece: Piece
) -> PieceLook | Failure:
    """Return a piece in figures, or why it cannot be used."""
    try:
        score = corpus.read_piece(piece)
    except UserError as error:
        return Failure(str(error), True)
    if not score.num_notes:
        return Failure(f"{piece.name}: no notes", True)
    encoded = {name: t.encode_with_summary(score) for name, t in tokenizers.items()}
    key = find_key(pitched_notes(score))
    _, top, bottom = score.metre_at(score.start)
    return PieceLook(
        minutes=score.seconds / 60,
        bars=len(score.bar_starts()),
        key=key.name if key else "none",
        metre=f"{top}/{bottom}",
        grid=grid_clarity(score.notes["onset"] / score.ticks_per_beat),
        kept={name: _share(score, tokenizers[name], s) for name, (_, s) in encoded.items()},
        tokens={name: len(tokens) for name, (tokens, _) in encoded.items()},
    )


def _share(score: Score, tokenizer: Tokenizer, summary: EncodingSummary) -> float:
    share = summary.notes_kept / summary.notes_read
    by_role = {role: len(notes) for role, notes in notes_by_role(score).items()}
    if isinstance(tokenizer, Chorale):
        voices = [track for track in score.tracks if len(track.notes)]
        return share * (len(voices) == 4 and DRUMS not in by_role)
    if isinstance(tokenizer, REMI):  # one instrument
        pitched = {role: count for role, count in by_role.items() if role != DRUMS}
        share *= max(pitched.values(), default=0) / max(1, sum(pitched.values()))
        share *= 0.5 if any(" read as " in rule for rule in summary.rules) else 1
    return share


def _ranking(values: Iterable[str]) -> str:
    ranked = Counter(values).most_common()
    more = f" and {len(ranked) - 4} more" if len(ranked) > 4 else ""
    return ", ".join(f"{value} ({count})" for value, count in ranked[:4]) + more
