"""The interface of tokenizers: encoding, decoding, training crops, and where the tokens are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from musicgen.errors import ParameterError, UserError, errors_name
from musicgen.midi import Score, Track
from musicgen.tokenization.chords.symbols import NO_CHORD, QUALITIES, chord_number
from musicgen.tokenization.grammar import Grammar, latest
from musicgen.tokenization.quantization import UNMOVED, Losses
from musicgen.tokenization.vocabulary import IntArray, Vocabulary, load_json, save_json, within

Rng = np.random.Generator

MAX_TOKENS_PER_BAR = 1024
"""More than any bar of a corpus holds; ends a row that would never reach its last bar."""

SCRAMBLED = {"Pitch": 7, "Duration": 3, "Chord": 140}
"""How far `Tokenizer.scramble` moves the ids of these families; all chords are within reach."""


class KeptParts(NamedTuple):
    """A piece of which some parts are given, and others are to be written.

    Attributes:
        given: ids, -1 for what is to be written, see `Grammar.give`. [L]
        roles: the decoded track that each of the score's tracks is; None: none.
        written: the decoded tracks to be written.
        start: grid step from which they replace the score's.
        stop: grid step at which the last given bar ends; None: with the ids.
        places: ticks of the score, and where they are in its whole bars, see `relocate`. [2, N]
    """

    given: IntArray
    roles: Sequence[int | None]
    written: Sequence[int]
    start: int = 0
    stop: int | None = None
    places: IntArray = UNMOVED


class Tokenizer(ABC):
    """Conversion between Scores and sequences of token ids.

    `decode(encode(score))` is the score on the tokenizer's grid, for any score.
    `encode(decode(tokens))` equals `tokens` for every complete sequence that the grammar allows.

    `coordinates` tell where tokens are. Each depends on the tokens up to its own, and is an integer
    >= 0:

    - `index`: number of the token, from 0.
    - `time`: musical time in grid steps from the first bar.
    - `bar`: number of the bar, from 0; crops count from their first.
    - `beat`: position in the bar, in grid steps.
    - `pitch`: MIDI pitch of the latest note of an instrument with pitches; 0 before the first.
    - `chord`: `chord_number` of the latest chord; 0 before the first.

    Attributes:
        vocabulary: the tokens; the augmentation settings do not change it.
        families: ids of each family of tokens, such as `Pitch`.
        pitches: the MIDI pitches of the tokens that have one.
        steps_per_beat: grid steps in a quarter note.
        max_transposition: largest transposition of a training crop, in semitones.
        note_families: families of which each token begins a note, as losses per note count notes.
    """

    name: ClassVar[str]
    note_families: ClassVar[tuple[str, ...]]
    vocabulary: Vocabulary
    families: dict[str, range]
    pitches: range
    steps_per_beat: int
    chords: bool = False
    max_transposition: int

    def settings(self) -> dict[str, Any]:
        """Return plain data that rebuilds the tokenizer: `type(t)(**t.settings())`.

        They are the arguments of the class, which are attributes of the same names. A class that
        passes `**settings` on has the arguments of its parent, too.
        """
        settings = {}
        for name in _argument_names(type(self)):
            value = getattr(self, name)
            is_list = isinstance(value, Sequence) and not isinstance(value, str)
            settings[name] = list(value) if is_list else value
        return settings

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `from_json`: the class's name, settings and vocabulary.

        Raises:
            UserError: the class has no name of its own, and its file would be read by its parent.
        """
        if "name" not in vars(type(self)):
            raise UserError(
                f"{type(self).__name__} cannot be saved without a name of its own; give the class "
                "an attribute name that no other tokenizer has"
            )
        return {
            "tokenizer": self.name,
            "settings": self.settings(),
            "vocabulary": self.vocabulary.to_json(),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Tokenizer:
        """Build the tokenizer from the data of `to_json`.

        Raises:
            UserError: the data are not a tokenizer's, or the settings now give other tokens.
        """
        try:
            name, settings = data["tokenizer"], data["settings"]
            hash_when_saved = data["vocabulary"]["hash"]
        except (KeyError, TypeError):
            expected = "tokenizer, settings and vocabulary"
            raise UserError(f"not a tokenizer: expected {expected}") from None
        classes = _named_classes(Tokenizer)
        if name not in classes:
            known = ", ".join(sorted(classes))
            raise UserError(
                f"tokenizer {name} is unknown (known: {known}); "
                "import the module that defines its class first"
            )
        try:
            tokenizer = classes[name](**settings)
        except TypeError:
            raise UserError("saved by another version of musicgen; use that version") from None
        if tokenizer.vocabulary.hash != hash_when_saved:
            raise UserError("its settings give another vocabulary than when it was saved")
        return tokenizer

    def save(self, path: str | Path) -> None:
        """Write settings and vocabulary as JSON, atomically."""
        save_json(self.to_json(), path)

    @staticmethod
    def load(path: str | Path) -> Tokenizer:
        """Read a tokenizer of any class from a file that `save` wrote."""
        data = load_json(path)
        with errors_name(path):
            return Tokenizer.from_json(data)

    def in_time(self, score: Score) -> Score:
        """Return music in the rhythms that the tokens' models know; see `quantization.in_time`."""
        return score

    @abstractmethod
    def encode_with_losses(self, score: Score) -> tuple[IntArray, Losses]:
        """Return the ids of a whole piece, end token included [L], and what they do not hold."""

    def encode(self, score: Score) -> IntArray:
        """Return the ids of a whole piece, end token included. [L]."""
        return self.encode_with_losses(score)[0]

    @abstractmethod
    def decode(self, tokens: IntArray) -> Score:
        """Return the music of ids [L]. Never raises on a prefix of a grammatical sequence.

        Ignores PAD and all ids after EOS; omits or closes an incomplete note.
        """

    def start_tokens(self) -> IntArray:
        """Return the first ids of every piece with notes, in the first metre. [L]."""
        return np.array([self.vocabulary.id("BOS")])

    @abstractmethod
    def times(self, tokens: IntArray) -> IntArray:
        """Return the musical time of each id, in grid steps from the first bar. [L] -> [L]."""

    def bar_starts(self, tokens: IntArray, bar_length: int) -> IntArray:
        """Return the grid steps at which the bars of ids [L] begin. -> [num_bars >= 1].

        Without bars among the tokens, each has `bar_length` grid steps.
        """
        return np.arange(0, self.times(self.until_end(tokens)).max(initial=0) + 1, bar_length)

    def bar_length(self, score: Score) -> int:
        """Return the grid steps in a bar of this piece, in its first metre."""
        _, numerator, denominator = score.first_metre()
        return max(1, 4 * self.steps_per_beat * numerator // denominator)

    @abstractmethod
    def find_track(self, track: Track) -> int | None:
        """Return the index of the decoded track that a Score's track becomes, if any.

        A track's program, name and drum flag decide, not its notes.
        """

    @abstractmethod
    def grammar(self) -> Grammar:
        """Return the grammar of the encodings."""

    @abstractmethod
    def crop_starts(self, tokens: IntArray, *, bar_length: int) -> IntArray:
        """Return where crops of a complete encoding [L] may begin, one row per bar. [num_bars, 2].

        The columns are a token index, and the offset in grid steps that is added to the times of
        the tokens from there on so that they count from the bar.
        """

    def crop(
        self,
        tokens: IntArray,
        starts: IntArray,
        length: int,
        *,
        bar_length: int,
        rng: Rng | None = None,
    ) -> IntArray:
        """Return a training crop from a bar on: grammatical, a new array, [<= length].

        Args:
            tokens: a complete encoding. [L]
            starts: the rows of `crop_starts` from the bar on; a piece without bars is its own crop.
            rng: for the random changes of the tokenizer's settings; None: no changes.
        """
        if not len(starts):
            return tokens[:length].astype(np.int64)
        window = self._crop(tokens, starts, length, bar_length, rng)
        if rng is None:
            return window
        # By one random interval that keeps all pitches in range.
        down = up = self.max_transposition
        ranks = self._pitch_ranks[window]
        present = ranks[ranks >= 0]
        if len(present):
            down = min(down, int(present.min()))
            up = min(up, int(self._pitch_ranks.max() - present.max()))
        return self.transpose(window, int(rng.integers(-down, up + 1)))

    def _crop(
        self, tokens: IntArray, starts: IntArray, length: int, bar_length: int, rng: Rng | None
    ) -> IntArray:
        """Return a new array with the crop at the first of `starts`, augmented given `rng`."""
        start = int(starts[0, 0])
        return tokens[start : start + length].astype(np.int64)

    def arrange(self, window: IntArray, rng: Rng) -> IntArray:
        """Return a training crop in another order of its parts, by the settings' probabilities.

        [L] -> [any length]
        """
        return window

    def scramble(self, window: IntArray, rng: Rng) -> IntArray:
        """Return a crop of unfamiliar music: what is known of it is mostly what returns in it.

        One to three passages of one to four bars return at random places, and random maps change
        the pitches, durations and chords of half of the crops and passages. [L] -> [any length]
        """
        edges = np.flatnonzero(within(window, self._bars))
        start, *bars = np.split(self._random_map(window, rng)[window], edges)
        num_whole = len(bars) - 1  # the last may be cut
        for _ in range(rng.integers(1, 4)):
            size = int(rng.integers(1, 5))
            if num_whole >= 2 * size:
                first, second = np.sort(rng.integers(num_whole - 2 * size + 1, size=2))
                table = self._random_map(window, rng)
                passage = [table[bar] for bar in bars[first : first + size]]
                for place in (first, second + size):
                    bars[place : place + size] = passage
        return np.concatenate([start, *bars])

    def _random_map(self, window: IntArray, rng: Rng) -> IntArray:
        """Return the id for each id: as often as not the same, else one near it in the window."""
        table = np.arange(len(self.vocabulary))
        for family, reach in SCRAMBLED.items() if rng.random() < 0.5 else ():
            ids = window[within(window, self.families.get(family, range(0)))]
            for own in np.unique(ids):
                table[own] = rng.choice(ids[np.abs(ids - own) <= reach])
        return table

    def keep_parts(
        self, score: Score, names: Sequence[str], first: int, end: int | None
    ) -> KeptParts:
        """Return a piece in an order in which some parts lead, so that others are written to them.

        Args:
            names: of the decoded tracks that lead.
            first: tick up to which the other parts are given, too.
            end: tick at which the writing ends; None: with the piece.

        Raises:
            UserError: the tokens have no such order, or the piece has no such parts.
        """
        raise UserError(
            "keep and rewrite need a model whose tokens have the parts of a bar one after another "
            "(tokenizer=songs); keep also voices, such as checkpoint=bach-chorales"
        )

    def from_bar(self, tokens: IntArray, bar: int, bar_length: int) -> IntArray:
        """Return the ids of a piece [L] from a bar on, before which no note begins. -> [<= L]."""
        starts = self.crop_starts(tokens, bar_length=bar_length)[bar:]
        return self.crop(tokens, starts, len(tokens), bar_length=bar_length)

    def transpose(self, tokens: IntArray, semitones: int) -> IntArray:
        """Return ids with pitches, which must stay in range, and chords moved by semitones."""
        table = np.arange(len(self.vocabulary)) + semitones * (self._pitch_ranks >= 0)
        if chords := self.families.get("Chord"):
            moved = (np.arange(NO_CHORD) + semitones * len(QUALITIES)) % NO_CHORD
            table[chords[:NO_CHORD]] = chords.start + moved
        if keys := self.families.get("Key"):  # all twelve, by fifths
            table[keys] = keys.start + (np.arange(len(keys)) + 7 * semitones) % 12
        return table[tokens]

    def tritone_away(self) -> IntArray:
        """Return each id with its pitch, if it has one, a tritone higher or lower, in range. [V]"""
        ranks = self._pitch_ranks
        return np.arange(len(ranks)) + np.where(2 * ranks > ranks.max(), -6, 6) * (ranks >= 0)

    @cached_property
    def _pitch_ranks(self) -> IntArray:
        """The index of each id's pitch, -1 without one; ids a semitone apart differ by 1. [V]"""
        ranks = np.full(len(self.vocabulary), -1)
        for pitches in (self.families["Pitch"], self.families.get("Ahead", range(0))):
            ranks[pitches] = np.arange(len(pitches))
        return ranks

    def num_notes(self, tokens: NDArray[Any]) -> int:
        """Return the number of ids that begin a note, of any shape; other integers do not count."""
        return sum(int(within(tokens, self.families[name]).sum()) for name in self.note_families)

    def until_end(self, tokens: IntArray) -> IntArray:
        """Return the ids before the first EOS, without PAD. [L] -> [<= L]."""
        tokens = np.asarray(tokens, dtype=np.int64)
        ends = np.flatnonzero(tokens == self.vocabulary.id("EOS"))
        tokens = tokens[: ends[0]] if len(ends) else tokens
        return tokens[tokens != self.vocabulary.pad_id]

    @property
    def match_classes(self) -> list[int]:
        """The class of each token, for matches of a copy head: all velocities are one. [V]

        The notes of a bar that returns are the same, how loud they are is not.
        """
        classes = np.arange(len(self.vocabulary))
        for family in ("Velocity", "Tempo"):
            ids = self.families.get(family, range(0))
            classes[ids] = ids.start
        return classes.tolist()

    def coordinates(
        self, tokens: IntArray, names: Sequence[str], *, bar_length: int | None = None
    ) -> IntArray:
        """Return the named coordinates of ids. [L] -> [L, len(names)].

        Args:
            bar_length: grid steps in a bar, for tokens without bars; None: a bar of four quarters.
        """
        tokens = np.asarray(tokens, dtype=np.int64)
        times = self.times(tokens)
        columns = {"index": np.arange(len(tokens)), "time": times}
        if self._bars:
            is_bar = within(tokens, self._bars)
            columns["bar"] = np.maximum(np.cumsum(is_bar) - 1, 0)
            columns["beat"] = times - latest(0, is_bar, times)
        else:
            length = bar_length or 4 * self.steps_per_beat
            columns["bar"], columns["beat"] = np.divmod(times, length)
        for name in {*names} & self.changes.keys():
            new = self.changes[name][tokens]
            columns[name] = latest(0, new >= 0, new)
        return np.stack([columns[name] for name in names], axis=1)

    def next_coordinates(
        self,
        names: Sequence[str],
        before: Tensor,
        tokens: Tensor,
        positions: IntArray,
        bar_lengths: Tensor,
    ) -> Tensor:
        """Return the coordinates of one more token in each row, on the CPU: [B, len(names)].

        Args:
            names: `index`, or `index`, `time` and more.
            before: those of the token before. [B, len(names)]
            tokens: the ids. [B]
            positions: `GrammarState.positions` after them. [B, 2]
            bar_lengths: grid steps in a bar. [B]
        """
        columns = dict(zip(("index", "time"), torch.from_numpy(positions).unbind(1), strict=True))
        for i, name in enumerate(names[2:], start=2):
            old, time = before[:, i], columns["time"]
            if name in self.changes:
                new = torch.from_numpy(self.changes[name])[tokens]
                columns[name] = torch.where(new < 0, old, new)
            elif self._bars:
                is_bar = (tokens >= self._bars.start) & (tokens < self._bars.stop)
                passed = old + time - before[:, 1]
                columns[name] = old + is_bar if name == "bar" else torch.where(is_bar, 0, passed)
            else:
                columns[name] = time // bar_lengths if name == "bar" else time % bar_lengths
        return torch.stack([columns[name] for name in names], dim=1)

    def check_coordinates(self, names: Sequence[str]) -> None:
        """Raise `ParameterError` if the tokens do not tell one of the named coordinates."""
        known = ["index", "time", "bar", "beat", *self.changes]
        if missing := [name for name in names if name not in known]:
            expected = f"expected some of {', '.join(known)}: the tokens tell no other"
            raise ParameterError("coordinates", ", ".join(missing), expected)

    @cached_property
    def changes(self) -> dict[str, IntArray]:
        """The value that each token gives to `pitch` and `chord`, -1 where it stays. [V] each."""
        pitch = np.where(self._pitch_ranks < 0, -1, self._pitch_ranks + self.pitches.start)
        pitch[self.families.get("NoteOff", range(0))] = -1
        changes = {"pitch": pitch}
        if chords := self.families.get("Chord"):
            changes["chord"] = np.full(len(self.vocabulary), -1)
            changes["chord"][chords] = [chord_number(i) for i in range(len(chords))]
        return changes

    @cached_property
    def _bars(self) -> range:
        return self.families.get("Bar", range(0))


def _named_classes(base: type[Tokenizer]) -> dict[str, type[Tokenizer]]:
    """Return the subclasses of a class, at any depth, by the names that they define."""
    classes: dict[str, type[Tokenizer]] = {}
    for subclass in base.__subclasses__():
        if "name" in vars(subclass):
            classes[subclass.name] = subclass
        classes |= _named_classes(subclass)
    return classes


def _argument_names(kind: type) -> list[str]:
    """Return the names of the arguments of a class, and of the classes that its `**` go to."""
    names: list[str] = []
    for each in kind.__mro__:
        if "__init__" not in vars(each):
            continue
        _, *parameters = signature(vars(each)["__init__"]).parameters.values()
        names += [p.name for p in parameters if p.kind is not Parameter.VAR_KEYWORD]
        if all(p.kind is not Parameter.VAR_KEYWORD for p in parameters):
            break
    return names
