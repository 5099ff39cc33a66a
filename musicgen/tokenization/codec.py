"""The codec of a tokenizer: Scores to token ids, ids to Scores, and what the ids mean."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from musicgen.midi import Score, TimeSignature, Track
from musicgen.tokenization.gaps import future_length
from musicgen.tokenization.grammar import Grammar
from musicgen.tokenization.quantization import QuantizationReport
from musicgen.tokenization.vocabulary import IntArray, Vocabulary, within


class Codec(ABC):
    """Conversion between Scores and sequences of token ids.

    `decode(encode(score))` is the score on the codec's grid, for any score.
    `encode(decode(tokens))` equals `tokens` for every complete sequence that the grammar allows.
    (`Songs` may begin its bars with any parts; `encode` returns their first order, and finds the
    bars left in phrases. A major key may have notes that fit its relative better; then `encode`
    returns the minor key, see `with_modes`.)

    Attributes:
        vocabulary: the tokens.
        families: the ids of each family of tokens, such as `Pitch`.
        note_families: families whose tokens begin a note; losses per note count these.
        pitches: the MIDI pitches of the tokens that have a pitch.
        steps_per_beat: grid steps in a quarter note.
        chords: whether the vocabulary has chords.
        time_signatures: those that new pieces may be in.
        counts_all: whether the index of each token is its number, see `index`.
    """

    note_families: ClassVar[tuple[str, ...]]
    vocabulary: Vocabulary
    families: dict[str, range]
    pitches: range
    steps_per_beat: int
    chords: bool = False
    time_signatures: Sequence[str] = ("4/4",)
    counts_all: ClassVar[bool] = True

    @abstractmethod
    def encode_with_report(self, score: Score) -> tuple[IntArray, QuantizationReport]:
        """Return the ids of a whole piece, end token included [L], and what encoding changed."""

    def encode(self, score: Score) -> IntArray:
        """Return the ids of a whole piece, end token included. [L]."""
        tokens, _ = self.encode_with_report(score)
        return tokens

    @abstractmethod
    def decode(self, tokens: IntArray) -> Score:
        """Return the music of ids [L]. Never raises on a prefix of a grammatical sequence.

        Ignores PAD and all ids after EOS; omits or closes an incomplete note.
        """

    @abstractmethod
    def grammar(self) -> Grammar:
        """Return the grammar of the encodings."""

    @abstractmethod
    def times(self, tokens: IntArray) -> IntArray:
        """Return the musical time of each id, in grid steps from the first bar. [L] -> [L]."""

    def index(self, tokens: IntArray) -> IntArray:
        """Return the index of each id, as `GrammarState.positions` has it. [L] -> [L]."""
        return np.arange(len(tokens))

    def future_length(self, tokens: IntArray) -> int:
        """Return how many of the ids [L] are of what follows a gap, see `gaps`; 0 without one."""
        return future_length(tokens, self.families.get("Gap", range(0)))

    @abstractmethod
    def find_track(self, track: Track) -> int | None:
        """Return the index of the decoded track that a Score's track becomes, if any.

        A track's program, name and drum flag decide, not its notes.
        """

    def find_tracks(self, tracks: Sequence[Track]) -> list[int | None]:
        """Return the index of the decoded track that each track of a Score becomes, if any."""
        return [self.find_track(track) for track in tracks]

    def normalise_rhythm(self, score: Score) -> Score:
        """Return the score in the rhythms that models of these tokens are trained on.

        The default changes nothing; see `printed_rhythm`.
        """
        return score

    def start_tokens(self, signature: TimeSignature | None = None) -> IntArray:
        """Return the first ids of every piece with notes. [L]

        Args:
            signature: of the first bar; None: the first one of the vocabulary.
        """
        return np.array([self.vocabulary.id("BOS")])

    def bar_length(self, score: Score) -> int:
        """Return the grid steps in a bar of this piece, in its first time signature."""
        _, numerator, denominator = score.first_time_signature()
        return max(1, 4 * self.steps_per_beat * numerator // denominator)

    def bar_starts(self, tokens: IntArray, bar_length: int) -> IntArray:
        """Return the grid steps at which the bars of ids [L] begin. -> [num_bars >= 1].

        Args:
            bar_length: grid steps in a bar, for tokens without bars.
        """
        last = self.times(self.until_end(tokens)).max(initial=0)
        return np.arange(0, last + 1, bar_length)

    def until_end(self, tokens: IntArray) -> IntArray:
        """Return the ids before the first EOS, without PAD. [L] -> [<= L]."""
        tokens = np.asarray(tokens, dtype=np.int64)
        ends = np.flatnonzero(tokens == self.vocabulary.id("EOS"))
        tokens = tokens[: ends[0]] if len(ends) else tokens
        return tokens[tokens != self.vocabulary.pad_id]

    def num_notes(self, tokens: NDArray[Any]) -> int:
        """Return the number of ids that begin a note, of any shape; other integers do not count."""
        return sum(int(within(tokens, self.families[name]).sum()) for name in self.note_families)

    @cached_property
    def pitch_ranks(self) -> IntArray:
        """The index of each id's pitch, -1 without one; ids a semitone apart differ by 1. [V]"""
        ranks = np.full(len(self.vocabulary), -1)
        for pitches in (self.families["Pitch"], self.families.get("Ahead", range(0))):
            ranks[pitches] = np.arange(len(pitches))
        return ranks
