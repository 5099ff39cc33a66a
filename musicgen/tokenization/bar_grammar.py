"""The grammars of sequences with bars, REMI and Songs, as batched masks."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from musicgen.midi import TICKS_PER_BEAT
from musicgen.tokenization.bars import InBars
from musicgen.tokenization.grammar import BoolArray, Grammar, GrammarState, latest
from musicgen.tokenization.vocabulary import IntArray

_CLOSING = {"Beat", "Bar", "EOS"}
_NEXT = {"Part", "Bar", "EOS"}


@dataclass
class BarState(GrammarState):
    """The state of sequences of bars. In indices, -1 stands for none.

    Attributes:
        bars: how many have begun; first grid step of the current one; first grid step after it;
            whether its part of chords has begun, 0 or 1. [B, 4]
        in_force: indices of the current tempo, chord, time signature and key. [B, 4]
        pitch: index of the last pitch at this position. [B]
        part: index of the current part; -1 in the bar's header. [B]
        ends: when each pitch stops sounding, by part, in units. [B, num_parts * num_pitches]
        orders: whether the parts so far may be in each of N orders. [B, N]
    """

    bars: IntArray
    in_force: IntArray
    pitch: IntArray
    part: IntArray
    ends: IntArray
    orders: BoolArray

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
    def key(self) -> IntArray:
        """Index of the key in force. [B]"""
        return self.in_force[:, 3]

    @property
    def has_chords(self) -> BoolArray:
        """Whether the part of chords of the current bar has begun. [B]"""
        return self.bars[:, 3] > 0

    @property
    def has_note(self) -> BoolArray:
        """Whether a note with a duration has begun. [B]"""
        return np.asarray(self.ends.any(axis=1))


class BarGrammar(Grammar[BarState]):
    """A grammar of bars, driven by a transition table.

    Attributes:
        followers: which family may follow which; the state restricts the tokens further.
        follows: whether a token's family may follow that of another token. [V, V]
        unit: parts of a grid step that durations count.
        durations: of the tokens, in these parts. [num_durations]
    """

    state_type = BarState
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
        parts, is_drum = tokenizer.places, [part.is_drum for part in tokenizer.instruments]
        self.is_chords = parts < 0
        self.is_drum = np.array(is_drum + [False] * self.is_chords.sum())
        # Each set of parts, the empty one first, may lead in all bars: the others follow them.
        leads = np.arange(2 ** len(parts))[:, None] >> np.arange(len(parts)) & 1  # [N, P]
        place = parts - len(parts) * leads  # of each part, by order
        # Whether a part may come after another, or after the header (-1), in each order.
        self._ordered = np.ones((len(parts) + 1, len(parts), len(place)), bool)
        self._ordered[:-1] = (place[:, :, None] < place[:, None]).transpose(1, 2, 0)
        self._kept = [self.numbers[name] for name in ("Tempo", "Chord", "Bar", "Key")]  # in force
        kinds = "Bar", "Beat", "Part", "Duration", "Pitch", "Drum"
        numbers = [self.numbers[name] for name in kinds]
        self._kinds = self.family == np.array(numbers)[:, None]  # which token is of which [6, V]
        self._length = np.zeros(size, np.int64)  # grid steps of the bar that a token begins [V]
        self._length[self.slices["Bar"]] = self.bar_lengths
        self.follows = np.zeros((size, size), bool)
        beginning = slice(self.pad, self.pad + 1)
        for name, followers in self.followers.items():
            for follower in followers:
                self.follows[self.slices.get(name, beginning), self.slices[follower]] = True
        rest = {"Velocity", "Duration"}
        in_note = [name for name, followers in self.followers.items() if followers <= rest]
        self._in_note = self.of_families(*in_note)  # tokens that only these may follow [V]

    def _initial_fields(self, batch: int) -> dict[str, Any]:
        none = np.full(batch, -1)
        return super()._initial_fields(batch) | {
            "bars": np.zeros((batch, 4), np.int64),
            "in_force": np.full((batch, 4), -1),
            "pitch": none,
            "part": none,
            "ends": np.zeros((batch, len(self.is_drum) * len(self.ranks["Pitch"])), np.int64),
            "orders": np.ones((batch, self._ordered.shape[-1]), bool),
        }

    def _allowed(self, state: BarState, earliest: Mapping[str, IntArray]) -> BoolArray:
        mask = self.follows[state.last]  # [B, V], a copy
        left = self.unit * (state.limit - state.time)[:, None]
        mask[:, self.slices["Duration"]] &= self.durations <= left
        if not self._in_note[state.last].all():  # else what limits other tokens is not needed
            self._limit(state, mask, earliest)
        return mask

    @abstractmethod
    def _limit(self, state: BarState, mask: BoolArray, earliest: Mapping[str, IntArray]) -> None:
        """Clear in a mask [B, V], which has the durations that fit, what the state forbids."""

    def _advance(self, state: BarState, ids: IntArray) -> tuple[IntArray, dict[str, Any]]:
        family, rank = self.family[ids], self.rank[ids]
        bar, beat, part, duration, pitch, drum = self._kinds[:, ids]
        length = self._length[ids]
        bar_end = state.bar_end + length.cumsum(axis=0)
        bar_start = latest(state.bar_start, bar, bar_end - length)
        moves, struck = bar | beat | part, pitch | drum
        time = latest(state.time, moves, bar_start + beat * rank)
        pitch = latest(state.pitch, moves | struck, np.where(struck, rank, -1))
        in_part = latest(state.part, bar | part, np.where(part, rank, -1))
        chords = part & self.is_chords[in_part]
        bars = np.empty((*ids.shape, 4), np.int64)
        bars[..., 0] = state.num_bars + bar.cumsum(axis=0)
        bars[..., 1], bars[..., 2] = bar_start, bar_end
        bars[..., 3] = latest(state.bars[:, 3], bar | chords, chords)
        changed = {
            "bars": bars,
            "in_force": latest(state.in_force, family[..., None] == self._kept, rank[..., None]),
            "pitch": pitch,
            "part": in_part,
        }
        if part.any():
            before = np.concatenate([state.part[None], in_part[:-1]])
            ordered = self._ordered[before, in_part] | ~part[..., None]
            changed["orders"] = state.orders & np.logical_and.accumulate(ordered)
        at = (duration & (pitch >= 0)).nonzero()
        if len(at[0]):
            ends = np.repeat(state.ends[None], len(ids), axis=0)
            num_pitches = len(self.ranks["Pitch"])
            sounds = np.minimum(pitch[at], num_pitches - 1)
            voice = num_pitches * np.maximum(in_part[at], 0) + sounds
            ends[(*at, voice)] = self.unit * time[at] + self.durations[rank[at]]
            # A pitch begins where its last note has ended.
            changed["ends"] = np.maximum.accumulate(ends)
        return time, changed


class REMIGrammar(BarGrammar):
    """Bars of ascending Beats with content: changes of chord and tempo, then ascending notes.

    A pitch cannot begin while it sounds.
    """

    unit = 2

    def __init__(self, tokenizer: InBars) -> None:
        self.followers = {
            "": {"Bar", "EOS"},  # the beginning
            "Bar": {"Bar", "Beat"},
            "Beat": {"Chord", "Tempo", "Pitch"},
            "Chord": {"Tempo", "Pitch", *_CLOSING},
            "Tempo": {"Pitch", *_CLOSING},
            "Pitch": {"Velocity"} if len(tokenizer.velocities) else {"Duration"},
            "Velocity": {"Duration"},
            "Duration": {"Pitch", *_CLOSING},
            "EOS": set(),
        }
        super().__init__(tokenizer)

    def _limit(self, state: BarState, mask: BoolArray, earliest: Mapping[str, IntArray]) -> None:
        last, time, limit, bar_end, pitch = (
            column[:, None]
            for column in (state.last, state.time, state.limit, state.bar_end, state.pitch)
        )
        ranks, slices, stop = self.ranks, self.slices, np.minimum(bar_end, limit)
        mask[:, slices["Pitch"]] &= (state.ends <= 2 * time) & (ranks["Pitch"] > pitch)

        # A Beat needs content: a change of tempo or chord, or else a pitch that is silent by then.
        ready = (state.ends.min(axis=1) + 1) // 2
        for family, in_force in ("Tempo", state.tempo), ("Chord", state.chord):
            is_new = ranks[family] != in_force[:, None]
            mask[:, slices[family]] &= is_new
            with_change = np.minimum(ready, earliest.get(family, 0))
            ready = np.where(is_new.any(axis=1), with_change, ready)
        ready = ready[:, None]
        beat_time = state.bar_start[:, None] + ranks["Beat"]
        after = time + (self.family[last] != self.numbers["Bar"])
        mask[:, slices["Beat"]] &= (beat_time >= np.maximum(after, ready)) & (beat_time < stop)
        num_more = self.max_bars - 1 - state.num_bars[:, None]
        end = bar_end + self.bar_lengths + num_more * self.bar_lengths.max()
        mask[:, slices["Bar"]] &= (num_more >= 0) & (end > ready) & (bar_end < limit)

    def time_tokens(self, state: BarState, until: IntArray) -> BoolArray:
        arrives = state.bar_start[:, None] + self.rank >= until[:, None]
        return self.of_families("Bar") | self.of_families("Beat") & arrives


class SongsGrammar(BarGrammar):
    """Bars of a header (bars left, key and tempo, where they change), then parts in one order.

    The first bar has a key. A part has ascending Beats with ascending notes, or with a chord. A
    pitch of a part cannot begin while it sounds there; drums do not sound on. The last part is of
    chords, if the tokenizer has them.
    """

    def __init__(self, tokenizer: InBars) -> None:
        has_velocity = len(tokenizer.velocities) > 0
        self.followers = {
            "": {"Bar", "EOS"},  # the beginning
            "Bar": {"Left", "Key", "Tempo", "Part", "Bar"},
            "Left": {"Key", "Tempo", "Part", "Bar"},
            "Key": {"Tempo", *_NEXT},
            "Tempo": _NEXT,
            "Chord": {"Beat", *_NEXT},
            "Part": {"Beat"},
            "Beat": {"Chord", "Pitch", "Drum"},
            "Pitch": {"Velocity"} if has_velocity else {"Duration"},
            "Drum": {"Velocity"} if has_velocity else {"Drum", "Beat", *_NEXT},
            "Velocity": {"Duration", "Drum", "Beat", *_NEXT},
            "Duration": {"Pitch", "Beat", *_NEXT},
            "EOS": set(),
        }
        super().__init__(tokenizer)
        self._opening = self.of_families("Bar", "Left", "Key", "Tempo", "Part")
        self._is_duration = self.of_families("Duration")
        self._until_key = self.of_families("Left", "Key")
        self.num_instruments = len(tokenizer.instruments)

    def may_follow(self, part: IntArray, leading: BoolArray) -> BoolArray:
        """Return which parts may come after a part [B] if some parts lead. [B, num_parts]

        Args:
            part: the current part; -1: the bar's header.
            leading: the parts that come before the others. [B, num_parts]
        """
        order = (leading * 2 ** np.arange(leading.shape[1])).sum(axis=1)
        return self._ordered[part, :, order]

    def _limit(self, state: BarState, mask: BoolArray, earliest: Mapping[str, IntArray]) -> None:
        last, time, limit, bar_end, pitch = (
            column[:, None]
            for column in (state.last, state.time, state.limit, state.bar_end, state.pitch)
        )
        ranks, slices, stop = self.ranks, self.slices, np.minimum(bar_end, limit)
        is_drum, in_chords = (of[state.part][:, None] for of in (self.is_drum, self.is_chords))

        mask[:, slices["Chord"]] &= in_chords & (ranks["Chord"] != state.chord[:, None])

        ends = state.ends.reshape(len(last), len(self.is_drum), -1)  # [B, P, num_pitches]
        # From when a part can have one more note. Drums and chords never sound on. [B, P]
        free = ends.min(axis=2)
        here = np.arange(len(last)), state.part
        may_sing = (ends[here] <= time) & ~in_chords & ~is_drum
        mask[:, slices["Pitch"]] &= may_sing & (ranks["Pitch"] > pitch)
        mask[:, slices["Drum"]] &= is_drum & (ranks["Drum"] > pitch)
        mask[:, slices["Duration"]] &= ~is_drum
        if len(ranks["Velocity"]):
            struck = self.family[last] == self.numbers["Velocity"]
            mask &= ~struck | is_drum | self._is_duration

        beat_time = state.bar_start[:, None] + ranks["Beat"]
        opening = self._opening[last]
        after = np.maximum(time + ~opening, free[here][:, None])
        mask[:, slices["Beat"]] &= (beat_time >= after) & (beat_time < stop)
        ordered = (self._ordered[state.part] & state.orders[:, None]).any(axis=2)
        mask[:, slices["Part"]] &= ordered & (free < stop)
        mask[:, slices["Bar"]] &= (state.num_bars[:, None] < self.max_bars) & (bar_end < limit)
        if not opening.any():
            return
        mask[:, slices["Tempo"]] &= ranks["Tempo"] != state.tempo[:, None]
        mask[:, slices["Key"]] &= ranks["Key"] != state.key[:, None]
        first = (state.key < 0) & (state.num_bars > 0)
        if first.any():
            mask &= ~first[:, None] | self._until_key

    def time_tokens(self, state: BarState, until: IntArray) -> BoolArray:
        return np.tile(self.of_families("Bar"), (len(until), 1))
