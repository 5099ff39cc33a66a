"""What models read of tokens besides their ids: coordinates, and classes of equal tokens."""

from collections.abc import Sequence

import numpy as np

from musicgen.errors import ParameterError
from musicgen.tokenization.chords import chord_number
from musicgen.tokenization.codec import Codec
from musicgen.tokenization.grammar import latest
from musicgen.tokenization.vocabulary import IntArray, within


class Coordinates:
    """The coordinates of tokens, for whole sequences and token by token.

    Each depends on the tokens up to its own, and is an integer >= 0:

    - `index`: number of the token, from 0, see `Codec.index`.
    - `time`: musical time in grid steps from the first bar.
    - `bar`: number of the bar, from 0; crops count from their first.
    - `beat`: position in the bar, in grid steps.
    - `pitch`: MIDI pitch of the latest note of an instrument with pitches; 0 before the first.
    - `chord`: `chord_number` of the latest chord; 0 before the first.
    - `key`: number of the latest key among the tokens of keys, from 1; 0 before the first.

    Attributes:
        names: the coordinates that tokens of this codec have.
        values: pitch, chord and key that each token gives, -1 where they stay. [V] each.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._bars = codec.families.get("Bar", range(0))
        self._marks = codec.families.get("Gap", range(0))
        pitch = np.where(codec.pitch_ranks < 0, -1, codec.pitch_ranks + codec.pitches.start)
        pitch[codec.families.get("NoteOff", range(0))] = -1
        self.values = {"pitch": pitch}
        if chords := codec.families.get("Chord"):
            self.values["chord"] = np.full(len(codec.vocabulary), -1)
            self.values["chord"][chords] = [chord_number(i) for i in range(len(chords))]
        if keys := codec.families.get("Key"):
            self.values["key"] = np.full(len(codec.vocabulary), -1)
            self.values["key"][keys] = 1 + np.arange(len(keys))
        self.names = ["index", "time", "bar", "beat", *self.values]

    def check(self, names: Sequence[str]) -> None:
        """Raise `ParameterError` if the tokens lack one of the named coordinates."""
        if missing := [name for name in names if name not in self.names]:
            expected = f"expected some of {', '.join(self.names)}: the tokens have no other"
            raise ParameterError("coordinates", ", ".join(missing), expected)

    def of(
        self,
        tokens: IntArray,
        names: Sequence[str],
        *,
        bar_length: int | None = None,
        gap_end: int | None = None,
    ) -> IntArray:
        """Return the named coordinates of ids. [L] -> [L, len(names)].

        Args:
            bar_length: grid steps in a bar, for tokens without bars; None: a bar of four quarters.
            gap_end: grid step at which the future of a gap begins; None: where the last bar of the
                tokens ends, which is that of the gap.
        """
        tokens = np.asarray(tokens, dtype=np.int64)
        times, index = self._codec.times(tokens), self._codec.index(tokens)
        first = self._codec.future_length(tokens)
        if first and gap_end is not None:
            times[: first - 1] += gap_end - times[0]
        columns = {"index": index, "time": times}
        if self._bars:
            is_bar = within(tokens, self._bars)
            columns["bar"] = np.maximum(np.cumsum(is_bar) - 1, 0)
            columns["beat"] = times - latest(0, is_bar | within(tokens, self._marks), times)
        else:
            length = bar_length or 4 * self._codec.steps_per_beat
            columns["bar"], columns["beat"] = np.divmod(times, length)
        for name in names:
            if name in self.values:
                new = self.values[name][tokens]
                columns[name] = latest(0, new >= 0, new)
        return np.stack([columns[name] for name in names], axis=1)

    def next(
        self,
        names: Sequence[str],
        before: IntArray,
        tokens: IntArray,
        positions: IntArray,
        bar_lengths: IntArray,
    ) -> IntArray:
        """Return the coordinates of one more token of each sequence. [B, len(names)]

        Args:
            names: `index`, or `index`, `time` and more.
            before: those of the token before. [B, len(names)]
            tokens: the ids. [B]
            positions: `GrammarState.positions` after them. [B, 2]
            bar_lengths: grid steps in a bar. [B]
        """
        after = np.empty_like(before)
        after[:, :2] = positions[:, : len(names)]
        time = positions[:, 1]
        for i, name in enumerate(names[2:], start=2):
            old = before[:, i]
            if name in self.values:
                new = self.values[name][tokens]
                after[:, i] = np.where(new < 0, old, new)
            elif not self._bars:
                after[:, i] = time // bar_lengths if name == "bar" else time % bar_lengths
            elif name == "bar":
                after[:, i] = old + within(tokens, self._bars)
            else:
                passed = old + time - before[:, 1]
                after[:, i] = np.where(within(tokens, self._bars), 0, passed)
        return after


def match_classes(codec: Codec) -> list[int]:
    """Return the class of each token for the matches of a copy head. [V]

    All velocities are one class, and all tempi: when a bar is repeated, its notes are the same, but
    not how loud they are.
    """
    classes = np.arange(len(codec.vocabulary))
    for family in ("Velocity", "Tempo"):
        ids = codec.families.get(family, range(0))
        classes[ids] = ids.start
    return classes.tolist()
