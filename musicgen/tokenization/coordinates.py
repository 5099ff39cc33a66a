"""Coordinates: where in the music each token is."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from musicgen.errors import ParameterError
from musicgen.tokenization.chords.symbols import chord_number
from musicgen.tokenization.grammar import latest
from musicgen.tokenization.vocabulary import IntArray, Vocabulary, within


class TokenCoordinates(ABC):
    """The part of a tokenizer that tells where its tokens are.

    A coordinate depends on the tokens up to its own, that one included, and is an integer >= 0:

    - `index`: number of the token, from 0.
    - `time`: musical time in grid steps from the first bar.
    - `bar`: number of the bar, from 0; crops count from their first.
    - `beat`: position in the bar, in grid steps.
    - `pitch`: MIDI pitch of the latest note of an instrument with pitches; 0 before the first.
    - `chord`: `chord_number` of the latest chord; 0 before the first.

    Tokenizers without `Bar` tokens need the grid steps in a bar; None is a bar of four quarters.
    """

    vocabulary: Vocabulary
    families: dict[str, range]
    steps_per_beat: int

    @abstractmethod
    def times(self, tokens: IntArray) -> IntArray:
        """Return the musical time of each id, in grid steps from the first bar. [L] -> [L]."""

    def pitch_tokens(self) -> dict[int, int]:
        """Return the MIDI pitch of each token that begins a note, by its id."""
        ids = [i for name in ("Pitch", "Ahead") for i in self.families.get(name, ())]
        return {i: int(self.vocabulary.token(i).partition("_")[2]) for i in ids}

    @property
    def match_classes(self) -> list[int]:
        """The class of each token, for matches of a copy head: all velocities are one. [V]

        The notes of a bar that returns are the same, how loud they are is not.
        """
        classes = list(range(len(self.vocabulary)))
        for family in ("Velocity", "Tempo"):
            for token in self.families.get(family, ()):
                classes[token] = self.families[family].start
        return classes

    def coordinates(
        self, tokens: IntArray, names: Sequence[str], *, bar_length: int | None = None
    ) -> IntArray:
        """Return the named coordinates of ids. [L] -> [L, len(names)]."""
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
        changes = {"pitch": np.full(len(self.vocabulary), -1)}
        pitches = self.pitch_tokens()
        changes["pitch"][[*pitches]] = [*pitches.values()]
        if chords := self.families.get("Chord"):
            changes["chord"] = np.full(len(self.vocabulary), -1)
            changes["chord"][chords] = [chord_number(i) for i in range(len(chords))]
        return changes

    @cached_property
    def _bars(self) -> range:
        return self.families.get("Bar", range(0))
