"""What every tokenizer is: Scores to tokens and back, crops for training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from musicgen.counts import counted
from musicgen.errors import UserError
from musicgen.midi import Score
from musicgen.tokenization.vocabulary import (
    IntArray,
    Vocabulary,
    hash_of,
    load_json,
    save_json,
)

if TYPE_CHECKING:
    from musicgen.tokenization.grammar import Grammar

TICKS_PER_BEAT = 480
"""Resolution of decoded Scores, in ticks per quarter note."""


@dataclass
class EncodingReport:
    """What an encoding kept, and what the vocabulary could not hold.

    Attributes:
        notes_read, notes_kept: numbers of notes in the Score and in the tokens.
        dropped, clipped: how many, by reason; a reason begins with a plural noun.
        rules: what was done to the piece as a whole.
    """

    notes_read: int = 0
    notes_kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    clipped: dict[str, int] = field(default_factory=dict)
    rules: list[str] = field(default_factory=list)

    def drop(self, reason: str, count: int) -> None:
        if count:
            self.dropped[reason] = self.dropped.get(reason, 0) + int(count)

    def clip(self, reason: str, count: int) -> None:
        if count:
            self.clipped[reason] = self.clipped.get(reason, 0) + int(count)

    @property
    def lossy(self) -> bool:
        """Whether anything was dropped, clipped or read by a rule."""
        return bool(self.dropped or self.clipped or self.rules)

    def summary(self) -> str:
        """One line, such as `12 notes outside A0-C8 dropped, 3/4 read as 4/4`."""
        parts = [
            f"{counted(count, reason)} {verb}"
            for verb, counts in (("dropped", self.dropped), ("clipped", self.clipped))
            for reason, count in counts.items()
        ]
        if self.notes_kept == self.notes_read:
            parts.insert(0, f"all {counted(self.notes_read, 'notes')} kept")
        return ", ".join(parts + self.rules)


class Tokenizer(ABC):
    """Music as a sequence of ids.

    `decode(encode(score))` is the score on the tokenizer's grid, for any score;
    `encode(decode(tokens))` gives back every complete sequence that the grammar allows.

    Attributes:
        vocabulary: the ids; independent of the augmentation settings.
        steps_per_beat: grid steps in a quarter note.
        chords: whether there are tokens for chords.
    """

    name: ClassVar[str]
    vocabulary: Vocabulary
    steps_per_beat: int
    chords: bool = False

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Plain data that rebuilds the tokenizer: `type(t)(**t.settings())`."""

    def to_json(self) -> dict[str, Any]:
        """Plain data for `from_json`: kind, settings, vocabulary, and a hash of all of them."""
        content = {
            "tokenizer": self.name,
            "settings": self.settings(),
            "vocabulary": self.vocabulary.to_json(),
        }
        return {**content, "hash": hash_of(content)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The tokenizer in `to_json`'s data.

        Raises:
            UserError: the data is no such tokenizer, was changed, or is of a version of musicgen
                in which the same settings give other tokens.
        """
        try:
            content = {key: data[key] for key in ("tokenizer", "settings", "vocabulary")}
            changed = data["hash"] != hash_of(content)
        except (KeyError, TypeError):
            raise UserError(
                "no tokenizer (tokenizer, settings, vocabulary, hash); use a saved one"
            ) from None
        if changed:
            raise UserError("the tokenizer was changed after it was saved; restore the file")
        kinds = {kind.name: kind for kind in Tokenizer.__subclasses__() if issubclass(kind, cls)}
        if content["tokenizer"] not in kinds:
            raise UserError(f"a {content['tokenizer']} tokenizer, not {', '.join(kinds)}")
        try:
            tokenizer = kinds[content["tokenizer"]](**content["settings"])
        except TypeError:
            tokenizer = None
        if tokenizer is None or tokenizer.vocabulary.to_json() != content["vocabulary"]:
            raise UserError("saved by another version of musicgen; use that version")
        return tokenizer

    def save(self, path: str | Path) -> None:
        """Write settings and vocabulary as JSON, atomically."""
        save_json(self.to_json(), path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file of `save`: by `Tokenizer.load` of any kind, by `REMI.load` a REMI.

        Raises:
            UserError: the file is unreadable, or `from_json` refuses it.
        """
        return load_json(path, cls.from_json)

    @abstractmethod
    def encode_with_report(self, score: Score) -> tuple[IntArray, EncodingReport]:
        """The whole piece as ids, its end token included [L], and what was lost on the way."""

    @abstractmethod
    def decode(self, tokens: IntArray) -> Score:
        """The music of ids [L]. Never raises on what the grammar allows, nor on a prefix of it.

        PAD is ignored, and what follows EOS; a note that is not yet whole is left out or closed.
        """

    @abstractmethod
    def start(self) -> IntArray:
        """The ids that a piece with music begins with; of several metres, in the first. [L]."""

    @abstractmethod
    def times(self, tokens: IntArray) -> IntArray:
        """Musical time of each id in grid steps from the first bar. [L] -> [L]."""

    @abstractmethod
    def bar_starts(self, tokens: IntArray, bar_length: int) -> IntArray:
        """Grid steps at which the bars of ids [L] begin, the first one at 0. -> [num_bars >= 1].

        Args:
            bar_length: of every bar, where the tokens do not tell.
        """

    @abstractmethod
    def bar_length(self, score: Score) -> int:
        """Grid steps in a bar of this piece."""

    @abstractmethod
    def grammar(self) -> Grammar:
        """Which ids may follow which."""

    @abstractmethod
    def crop_places(self, tokens: IntArray, *, bar_length: int) -> IntArray:
        """Where the crops of a complete encoding [L] may begin, one for each bar. [num_bars, 2].

        An index into the ids, and the grid step from which their times count there, in steps from
        the bar.
        """

    @abstractmethod
    def sample_window(
        self,
        tokens: IntArray,
        rng: np.random.Generator,
        length: int,
        *,
        bar_length: int,
        augment: bool,
        places: IntArray | None = None,
    ) -> IntArray:
        """A training crop of a piece: grammatical from its first id, at most `length` ids.

        It starts at a uniformly drawn bar.

        Args:
            tokens: a complete encoding. [L]
            bar_length: the piece's, in grid steps.
            augment: apply the random changes that the tokenizer's settings name.
            places: those of `crop_places`, which spare looking through the whole piece.
        """

    def encode(self, score: Score) -> IntArray:
        """The whole piece as ids, its end token included. [L]."""
        return self.encode_with_report(score)[0]

    def positions(self, tokens: IntArray) -> IntArray:
        """Token index and musical time in grid steps. [L] -> [L, 2]."""
        return np.stack([np.arange(len(tokens)), self.times(tokens)], axis=1)

    def until_end(self, tokens: IntArray) -> IntArray:
        """The ids before the first EOS, without PAD. [L] -> [<= L]."""
        tokens = np.asarray(tokens, dtype=np.int64)
        ends = np.flatnonzero(tokens == self.vocabulary.id("EOS"))
        tokens = tokens[: ends[0]] if len(ends) else tokens
        return tokens[tokens != self.vocabulary.pad_id]
