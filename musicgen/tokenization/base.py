"""What every tokenizer is: a frozen vocabulary, Scores to tokens and back, crops for training."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from musicgen.errors import UserError
from musicgen.files import write_bytes
from musicgen.midi import Score

if TYPE_CHECKING:
    from musicgen.tokenization.grammar import Grammar

IntArray = NDArray[np.int64]

TICKS_PER_BEAT = 480
"""Resolution of decoded Scores, in ticks per quarter note."""


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a model, in id order. `PAD` stands outside of them, as the last id."""

    PAD: ClassVar[str] = "PAD"

    tokens: tuple[str, ...]
    version: int = 1

    def __post_init__(self) -> None:
        assert len(self._ids) == len(self), "token names must differ from each other and from PAD"

    def __len__(self) -> int:
        """Number of ids, PAD included: the V of a model."""
        return len(self.tokens) + 1

    @property
    def pad_id(self) -> int:
        return len(self.tokens)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {token: i for i, token in enumerate((*self.tokens, self.PAD))}

    def id(self, token: str) -> int:
        """The id of a token's name, such as `Pitch_60`; `KeyError` if there is none."""
        return self._ids[token]

    def token(self, index: int) -> str:
        """The name of an id; `IndexError` outside 0..pad_id."""
        if not 0 <= index <= self.pad_id:
            raise IndexError(f"token id {index} is outside 0..{self.pad_id}")
        return self.PAD if index == self.pad_id else self.tokens[index]

    @cached_property
    def hash(self) -> str:
        """SHA-256, in hex, of version and tokens as JSON with sorted keys and no spaces."""
        content = {"version": self.version, "tokens": self.tokens}
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Plain data for `from_json`."""
        return {"version": self.version, "hash": self.hash, "tokens": list(self.tokens)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Vocabulary:
        """The vocabulary in `to_json`'s data.

        Raises:
            UserError: the data is no vocabulary, or its tokens do not have the hash it states.
        """
        try:
            vocabulary = cls(tuple(str(token) for token in data["tokens"]), int(data["version"]))
            stated = data["hash"]
        except (KeyError, TypeError, ValueError):
            raise UserError("no vocabulary (version, hash, tokens); use a saved one") from None
        if vocabulary.hash != stated:
            raise UserError("the vocabulary was changed after it was frozen; restore the file")
        return vocabulary

    def save(self, path: str | Path) -> None:
        """Write the vocabulary as JSON, atomically."""
        write_bytes(path, (json.dumps(self.to_json(), indent=1) + "\n").encode())

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Read a file of `save`.

        Raises:
            UserError: the file is unreadable, no vocabulary, or was edited.
        """
        try:
            return cls.from_json(json.loads(Path(path).read_text()))
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from None
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        except ValueError:
            raise UserError(f"{path}: not JSON; give a vocab.json") from None


def vocabulary_of(families: Mapping[str, list[str]]) -> tuple[Vocabulary, dict[str, range]]:
    """The families' tokens one after the other, and the range of ids of each family."""
    ids, start = {}, 0
    for family, tokens in families.items():
        ids[family] = range(start, start + len(tokens))
        start += len(tokens)
    return Vocabulary(tuple(t for tokens in families.values() for t in tokens)), ids


def within(tokens: IntArray, ids: range) -> NDArray[np.bool_]:
    """Which tokens belong to a family. [...] -> [...]."""
    return (tokens >= ids.start) & (tokens < ids.stop)


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
            f"{_counted(count, reason)} {verb}"
            for verb, counts in (("dropped", self.dropped), ("clipped", self.clipped))
            for reason, count in counts.items()
        ]
        if self.notes_kept == self.notes_read:
            parts.insert(0, f"all {_counted(self.notes_read, 'notes')} kept")
        return ", ".join(parts + self.rules)


def _counted(count: int, reason: str) -> str:
    noun, space, rest = reason.partition(" ")
    return f"{count} {noun.removesuffix('s') if count == 1 else noun}{space}{rest}"


class Tokenizer(ABC):
    """Music as a sequence of ids.

    `decode(encode(score))` is the score on the tokenizer's grid, for any score;
    `encode(decode(tokens))` gives back every complete sequence that the grammar allows.

    Attributes:
        vocabulary: the ids; independent of the augmentation settings.
        steps_per_beat: grid steps in a quarter note.
    """

    name: ClassVar[str]
    vocabulary: Vocabulary
    steps_per_beat: int

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Plain data that rebuilds the tokenizer: `type(t)(**t.settings())`."""

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
        """The ids that every piece with music begins with. [L]."""

    @abstractmethod
    def times(self, tokens: IntArray) -> IntArray:
        """Musical time of each id in grid steps from the first bar. [L] -> [L]."""

    @abstractmethod
    def bar_length(self, score: Score) -> int:
        """Grid steps in a bar of this piece."""

    @abstractmethod
    def grammar(self) -> Grammar:
        """Which ids may follow which."""

    @abstractmethod
    def sample_window(
        self,
        tokens: IntArray,
        rng: np.random.Generator,
        length: int,
        *,
        bar_length: int,
        augment: bool,
    ) -> IntArray:
        """A training crop of a piece: grammatical from its first id, at most `length` ids.

        It starts at a uniformly drawn bar.

        Args:
            tokens: a complete encoding. [L]
            bar_length: the piece's, in grid steps.
            augment: apply the random changes that the tokenizer's settings name.
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
