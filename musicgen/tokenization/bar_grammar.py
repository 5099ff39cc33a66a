"""The grammar of sequences with bars, which REMI and the songs share, as batched masks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from musicgen.midi import TICKS_PER_BEAT
from musicgen.tokenization.bars import InBars
from musicgen.tokenization.grammar import BoolArray, Grammar, GrammarState, latest
from musicgen.tokenization.vocabulary import IntArray


@dataclass
class BarState(GrammarState):
    """The state of sequences of bars. In indices, -1 stands for none.

    Attributes:
        bars: how many have begun; first grid step of the current one; first grid step after it;
            whether its chords have begun, 0 or 1, for tokens with a part of chords. [B, 4]
        in_force: indices of the current tempo, chord, time signature and key. [B, 4]
        pitch: index of the last pitch at this position. [B]
        part: index of the current part. [B]
        ends: when each pitch stops sounding, by part, in units. [B, num_parts * num_pitches]
    """

    bars: IntArray
    in_force: IntArray
    pitch: IntArray
    part: IntArray
    ends: IntArray

    @property
    def num_bars(self) -> IntArray:
        """Bars that have begun. [B]"""
        return self.bars[:, 0]

    @property
    def bar_start(self) -> IntArray:
        """First grid step of the current bar. [B]"""
        return self.bars[:, 1]

    @property
    def bar_end(self) -> IntArray:
        """First grid step after the current bar. [B]"""
        return self.bars[:, 2]

    @property
    def tempo(self) -> IntArray:
        """Index of the tempo in force. [B]"""
        return self.in_force[:, 0]

    @property
    def chord(self) -> IntArray:
        """Index of the chord in force. [B]"""
        return self.in_force[:, 1]

    @property
    def time_signature(self) -> IntArray:
        """Index of the time signature in force. [B]"""
        return self.in_force[:, 2]

    @property
    def has_note(self) -> BoolArray:
        """Whether a note with a duration has begun. [B]"""
        return np.asarray(self.ends.any(axis=1))


R = TypeVar("R", bound=BarState)


class BarGrammar(Grammar[R]):
    """A grammar of bars, of which a table tells what family may follow which.

    Attributes:
        followers: which family may follow which; the state restricts the tokens further.
        follows: whether a token's family may follow that of another token. [V, V]
        unit: parts of a grid step that durations count.
        durations: of the tokens, in these parts. [num_durations]
    """

    followers: Mapping[str, set[str]]
    unit = 1

    def __init__(self, tokenizer: InBars) -> None:
        super().__init__(tokenizer.vocabulary, tokenizer.families)
        self.bar_lengths, self.max_bars = tokenizer.signatures.lengths, tokenizer.max_bars
        per_beat = self.unit * tokenizer.steps_per_beat
        self.durations = tokenizer.durations * per_beat // TICKS_PER_BEAT
        size = len(self.vocabulary)
        self.ranks = {name: np.arange(len(ids)) for name, ids in tokenizer.families.items()}
        self.rank = np.zeros(size, np.int64)  # index of a token in its family [V]
        for name, own in self.slices.items():
            self.rank[own] = self.ranks[name]
        self._struck = self.of_families("Pitch", "Drum")
        self._in_note = self.of_families("Pitch", "Velocity")  # whose duration is still to come [V]
        self._note = np.where(self._struck, self.rank, -1)
        self._part = np.where(self.of_families("Part"), self.rank, -1)
        self._step = np.where(self.of_families("Beat"), self.rank, 0)  # of the bar
        # Which entries of `BarState.in_force` a token changes. [V, 4]
        changes = [self.of_families(name) for name in ("Tempo", "Chord", "Bar", "Key")]
        self._changes = np.stack(changes, axis=1)
        self._length = np.zeros(size, np.int64)  # grid steps of the bar that a token begins [V]
        self._length[self.slices["Bar"]] = self.bar_lengths
        self.follows = np.zeros((size, size), bool)
        beginning = slice(self.pad, self.pad + 1)
        for name, followers in self.followers.items():
            for follower in followers:
                self.follows[self.slices.get(name, beginning), self.slices[follower]] = True

    def _initial_fields(self, batch: int) -> dict[str, Any]:
        none = np.full(batch, -1)
        return super()._initial_fields(batch) | {
            "bars": np.zeros((batch, 4), np.int64),
            "in_force": np.full((batch, 4), -1),
            "pitch": none,
            "part": none,
        }

    def _limit_changes(self, state: R, mask: BoolArray) -> dict[str, BoolArray]:
        """Leave in a mask [B, V] only the tempi and chords that are not in force.

        Returns:
            Which of a family are not in force, for Tempo and Chord. [B, num_tokens]
        """
        new = {}
        for family, in_force in ("Tempo", state.tempo), ("Chord", state.chord):
            new[family] = self.ranks[family] != in_force[:, None]
            mask[:, self.slices[family]] &= new[family]
        return new

    def _advance(self, state: R, ids: IntArray) -> tuple[IntArray, dict[str, Any]]:
        family, rank = self.family[ids], self.rank[ids]
        bar, beat, part, duration = (
            family == self.numbers[name] for name in ("Bar", "Beat", "Part", "Duration")
        )
        length = self._length[ids]
        bar_end = state.bar_end + length.cumsum(axis=0)
        bar_start = latest(state.bar_start, bar, bar_end - length)
        moves = bar | beat | part
        time = latest(state.time, moves, bar_start + self._step[ids])
        pitch = latest(state.pitch, moves | self._struck[ids], self._note[ids])
        in_part = latest(state.part, bar | part, self._part[ids])
        bars = np.repeat(state.bars[None], len(ids), axis=0)
        bars[..., 0] += bar.cumsum(axis=0)
        bars[..., 1], bars[..., 2] = bar_start, bar_end
        in_force = latest(state.in_force, self._changes[ids], rank[..., None])
        changed = {"bars": bars, "in_force": in_force, "pitch": pitch, "part": in_part}
        at = (duration & (pitch >= 0)).nonzero()
        if len(at[0]):
            ends, num_pitches = np.array([state.ends] * len(ids)), len(self.ranks["Pitch"])
            sounds = np.minimum(pitch[at], num_pitches - 1)
            voice = num_pitches * np.maximum(in_part[at], 0) + sounds
            ends[(*at, voice)] = self.unit * time[at] + self.durations[rank[at]]
            # A pitch begins where its last note has ended.
            changed["ends"] = np.maximum.accumulate(ends)
        return time, changed
