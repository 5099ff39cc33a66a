"""The grammar of REMI as batched masks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from musicgen.midi import TICKS_PER_BEAT
from musicgen.tokenization.bars import InBars
from musicgen.tokenization.grammar import (
    NEVER,
    BoolArray,
    Grammar,
    GrammarState,
    Ids,
    latest,
    padded,
)
from musicgen.tokenization.vocabulary import IntArray

CLOSING = {"Beat", "Bar", "EOS"}


@dataclass
class REMIState(GrammarState):
    """The state of REMI sequences: [B] each, unless noted; -1 stands for none."""

    num_bars: IntArray  # bars begun
    bar_start: IntArray  # first grid step of the bar
    bar_end: IntArray  # first grid step after the bar
    pitch: IntArray  # index of the last pitch at this position
    part: IntArray  # current index
    ends: IntArray  # when each pitch stops sounding, by part, in units [B, num_parts * num_pitches]
    tempo: IntArray  # current index
    chord: IntArray  # current index
    chords: BoolArray  # whether the model chooses Chord tokens
    progression: IntArray  # first grid step and index of the chords to come, then NEVER [B, N, 2]
    metre: IntArray  # current index

    @property
    def has_note(self) -> BoolArray:
        """Whether a note with a duration has begun. [B]"""
        return np.asarray(self.ends.any(axis=1))


R = TypeVar("R", bound=REMIState)


class BarGrammar(Grammar[R]):
    """A grammar of bars, of which a table tells what family may follow which.

    Chords continue a prompt only if it has chords or no notes.

    Attributes:
        followers: which family may follow which; the state restricts the tokens further.
        unit: parts of a grid step that durations count.
        durations: of the tokens, in these parts. [num_durations]
    """

    followers: Mapping[str, set[str]]
    unit = 1
    hold_tempo = hold_metre = False

    def __init__(self, tokenizer: InBars) -> None:
        super().__init__(tokenizer.vocabulary, tokenizer.families)
        self.bar_lengths, self.max_bars = tokenizer.signatures.lengths, tokenizer.max_bars
        per_beat = self.unit * tokenizer.steps_per_beat
        self.durations = tokenizer.durations * per_beat // TICKS_PER_BEAT
        size = len(self.vocabulary)
        self._ranks = {name: np.arange(len(ids)) for name, ids in tokenizer.families.items()}
        self._rank = np.zeros(size, np.int64)  # index of a token in its family [V]
        for name, own in self._slices.items():
            self._rank[own] = self._ranks[name]
        self._struck = self._of("Pitch", "Drum")
        self._in_note = self._of("Pitch", "Velocity")  # whose duration is still to come [V]
        self._note = np.where(self._struck, self._rank, -1)
        self._part = np.where(self._of("Part"), self._rank, -1)
        self._step = np.where(self._of("Beat"), self._rank, 0)  # of the bar
        self._length = np.zeros(size, np.int64)  # grid steps of the bar that a token begins [V]
        self._length[self._slices["Bar"]] = self.bar_lengths
        self._follows = np.zeros((size, size), bool)  # whether a token's family may follow [V, V]
        beginning = slice(self.pad, self.pad + 1)
        for name, followers in self.followers.items():
            for follower in followers:
                self._follows[self._slices.get(name, beginning), self._slices[follower]] = True

    def _initial_fields(self, num_rows: int) -> dict[str, Any]:
        zeros = np.zeros(num_rows, np.int64)
        none = zeros - 1
        return super()._initial_fields(num_rows) | {
            **{"num_bars": zeros, "bar_start": zeros, "bar_end": zeros, "pitch": none},
            **{"part": none, "tempo": none, "chord": none, "chords": zeros == 0, "metre": none},
            "progression": np.full((num_rows, 1, 2), NEVER),
        }

    def start(self, prompts: Ids) -> R:
        state = super().start(prompts)
        has_note = state.has_note | (state.pitch >= 0)
        return replace(state, chords=(state.chord >= 0) | ~has_note)

    def hold(self, *, tempo: bool, metre: bool) -> None:
        self.hold_tempo, self.hold_metre = tempo, metre

    def harmonise(self, state: R, progressions: Sequence[IntArray]) -> R:
        free = np.array([len(each) == 0 for each in progressions])
        return replace(state, chords=state.chords & free, progression=padded(progressions, NEVER))

    def _limit_changes(
        self, state: R, mask: BoolArray, time: IntArray
    ) -> tuple[BoolArray, BoolArray, IntArray]:
        """Leave in a mask [B, V] the tempi, metres and chords that may come.

        Returns:
            Which tempi [B, num_tempi] and chords [B, num_chords] may come, and when a progression
            changes the chord next from a time [B] on. [B, 1]
        """
        ranks = self._ranks
        new_tempo = ranks["Tempo"] != state.tempo[:, None]
        if self.hold_tempo:  # once there is one, or a note
            new_tempo &= ~((state.tempo >= 0) | state.has_note)[:, None]
        mask[:, self._slices["Tempo"]] &= new_tempo
        if self.hold_metre:
            metre = state.metre[:, None]
            mask[:, self._slices["Bar"]] &= (metre < 0) | (ranks["Bar"] == metre)

        starts, indices = state.progression[..., 0], state.progression[..., 1]
        differs = np.ones_like(starts, dtype=bool)  # the end does
        is_ahead = starts[:, 1:] > time[:, None]  # or in force: until the chord behind it begins
        differs[:, :-1] = is_ahead & (indices[:, :-1] != state.chord[:, None])
        at = differs.argmax(axis=1)[:, None]
        due = np.maximum(np.take_along_axis(starts, at, 1), time[:, None])
        asked = np.take_along_axis(indices, at, 1)
        new_chord = (ranks["Chord"] != state.chord[:, None]) & state.chords[:, None]
        new_chord |= (ranks["Chord"] == asked) & (due == state.time[:, None])
        mask[:, self._slices["Chord"]] &= new_chord
        return new_tempo, new_chord, due

    def _advance(self, state: R, ids: IntArray) -> tuple[IntArray, dict[str, Any]]:
        family, rank = self._family[ids], self._rank[ids]
        bar, beat, part, tempo, chord, duration = (
            family == self._numbers[name]
            for name in ("Bar", "Beat", "Part", "Tempo", "Chord", "Duration")
        )
        length = self._length[ids]
        bar_end = state.bar_end + length.cumsum(axis=0)
        bar_start = latest(state.bar_start, bar, bar_end - length)
        moves = bar | beat | part
        time = latest(state.time, moves, bar_start + self._step[ids])
        pitch = latest(state.pitch, moves | self._struck[ids], self._note[ids])
        in_part = latest(state.part, bar | part, self._part[ids])
        changed = {
            "num_bars": state.num_bars + bar.cumsum(axis=0),
            "bar_start": bar_start,
            "bar_end": bar_end,
            "pitch": pitch,
            "part": in_part,
            "tempo": latest(state.tempo, tempo, rank),
            "chord": latest(state.chord, chord, rank),
            "metre": latest(state.metre, bar, rank),
        }
        at = (duration & (pitch >= 0)).nonzero()
        if len(at[0]):
            ends, num_pitches = np.array([state.ends] * len(ids)), len(self._ranks["Pitch"])
            sounds = np.minimum(pitch[at], num_pitches - 1)
            voice = num_pitches * np.maximum(in_part[at], 0) + sounds
            ends[(*at, voice)] = self.unit * time[at] + self.durations[rank[at]]
            # A pitch begins where its last note has ended.
            changed["ends"] = np.maximum.accumulate(ends)
        return time, changed


class REMIGrammar(BarGrammar[REMIState]):
    """Bars of ascending Beats with content: changes of chord and tempo, then ascending notes.

    A pitch cannot begin while it sounds.
    """

    followers: Mapping[str, set[str]] = {
        "": {"Bar", "EOS"},  # the beginning
        "Bar": {"Bar", "Beat"},
        "Beat": {"Chord", "Tempo", "Pitch"},
        "Chord": {"Tempo", "Pitch", *CLOSING},
        "Tempo": {"Pitch", *CLOSING},
        "Pitch": {"Velocity"},
        "Velocity": {"Duration"},
        "Duration": {"Pitch", *CLOSING},
        "EOS": set(),
    }
    unit = 2

    def _initial_state(self, num_rows: int) -> REMIState:
        ends = np.zeros((num_rows, len(self._ranks["Pitch"])), np.int64)
        return REMIState(**self._initial_fields(num_rows), ends=ends)

    def _allowed(self, state: REMIState) -> BoolArray:
        last, time, limit, bar_end = (
            column[:, None] for column in (state.last, state.time, state.limit, state.bar_end)
        )
        ends, ranks = state.ends, self._ranks
        mask = self._follows[state.last]  # [B, V], a copy
        mask[:, self._slices["Duration"]] &= self.durations <= 2 * (limit - time)
        if self._in_note[state.last].all():
            # Only a velocity or a duration may follow; what limits other tokens is not needed.
            return mask

        new_tempo, new_chord, due = self._limit_changes(state, mask, state.time)
        must = (self._family[last] == self._numbers["Beat"]) & (due == time)
        if must.any():
            mask &= ~must | (self._family == self._numbers["Chord"])
        higher = ranks["Pitch"] > state.pitch[:, None]
        mask[:, self._slices["Pitch"]] &= (ends <= 2 * time) & higher

        # A Beat needs content: a change of tempo or chord, or else a pitch that is silent by then.
        # None, nor the bar's end, may pass the next chord of a progression.
        any_change = new_tempo.any(axis=1) | new_chord.any(axis=1)
        silent = np.where(any_change, 0, (ends.min(axis=1) + 1) // 2)[:, None]
        ready = np.minimum(silent, due)
        beat_time = state.bar_start[:, None] + ranks["Beat"]
        after = time + (self._family[last] != self._numbers["Bar"])
        stop = np.minimum(bar_end, limit)
        beat = (beat_time >= np.maximum(after, ready)) & (beat_time < stop) & (beat_time <= due)
        mask[:, self._slices["Beat"]] &= beat
        num_more = self.max_bars - 1 - state.num_bars[:, None]
        end = bar_end + self.bar_lengths + num_more * self.bar_lengths.max()
        complete = due >= stop
        bar = (num_more >= 0) & (end > ready) & (bar_end < limit) & complete
        mask[:, self._slices["Bar"]] &= bar
        mask[:, self._slices["EOS"]] &= complete
        return mask

    def _time_tokens(self, state: REMIState, until: IntArray) -> BoolArray:
        arrives = state.bar_start[:, None] + self._rank >= until[:, None]
        return self._of("Bar") | self._of("Beat") & arrives
