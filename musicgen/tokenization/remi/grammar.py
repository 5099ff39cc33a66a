"""The grammar of REMI as batched masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from musicgen.tokenization.grammar import (
    NEVER,
    Grammar,
    GrammarState,
    cumulate,
    latest,
    latest_rows,
    padded_rows,
)
from musicgen.tokenization.vocabulary import IntArray, Vocabulary

CLOSING = {"Beat", "Bar", "EOS"}
FOLLOWERS: dict[str, set[str]] = {
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
"""Which family may follow which; the state restricts the tokens of a family further."""


@dataclass
class REMIState(GrammarState):
    """The state of REMI sequences: [B] each, unless noted; -1 stands for none."""

    num_bars: Tensor  # bars begun
    bar_start: Tensor  # first grid step of the bar
    bar_end: Tensor  # first grid step after the bar
    pitch: Tensor  # index of the last pitch at this position
    ends: Tensor  # half grid step at which each pitch stops sounding [B, num_pitches]
    tempo: Tensor  # current index
    chord: Tensor  # current index
    chords: Tensor  # whether the model chooses Chord tokens
    progression: Tensor  # first grid step and index of the chords to come, then NEVER [B, N, 2]
    metre: Tensor  # current index
    hold_tempo: Tensor  # whether the tempo stays once there is one, or a note
    hold_metre: Tensor  # whether the metre stays


class REMIGrammar(Grammar[REMIState]):
    """Bars of ascending Beats with content: changes of chord and tempo, then ascending notes.

    A pitch cannot begin while it sounds. Chords continue a prompt only if it has chords or no
    notes.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        families: Mapping[str, range],
        bar_lengths: IntArray,
        max_bars: int,
    ) -> None:
        super().__init__(vocabulary)
        self.families, self.max_bars = families, max_bars
        self.longest_bar = int(bar_lengths.max())
        size = len(vocabulary)
        follow = torch.zeros(size, size, dtype=torch.bool)
        for name, followers in FOLLOWERS.items():
            ids = families[name] if name else range(self.pad, self.pad + 1)
            for follower in followers:
                to = families[follower]
                follow[ids.start : ids.stop, to.start : to.stop] = True
        self._numbers = {name: number for number, name in enumerate(families)}
        family, rank = torch.full((size,), -1), torch.zeros(size, dtype=torch.long)
        for name, ids in families.items():
            family[ids.start : ids.stop] = self._numbers[name]
            rank[ids.start : ids.stop] = torch.arange(len(ids))
        self.family = family  # number of a token's family, -1 for PAD [V]
        self.rank = rank  # index of a token in its family [V]
        self.bar_lengths = torch.from_numpy(bar_lengths)
        # The same for single steps, whose many small operations are faster in numpy.
        self._slices = {name: slice(ids.start, ids.stop) for name, ids in families.items()}
        self._rank_arrays = {name: np.arange(len(ids)) for name, ids in families.items()}
        # Whether a token's family may follow another token's, [V, V].
        self._follow_array, self._length_array = follow.numpy(), bar_lengths
        self._family_array, self._rank_array = family.numpy(), rank.numpy()
        in_note = [self._numbers[name] for name in ("Pitch", "Velocity")]
        self._in_note = np.isin(self._family_array, in_note)  # whose duration is still to come

    def tables(self) -> dict[str, Any]:
        """Return which family may follow which, and the lengths of bars by rank, in grid steps."""
        return {
            "followers": {name: sorted(families) for name, families in FOLLOWERS.items()},
            "bar_lengths": self.bar_lengths.tolist(),
            "max_bars": self.max_bars,
        }

    def _initial_state(self, num_rows: int) -> REMIState:
        zeros = torch.zeros(num_rows, dtype=torch.long)
        none = torch.full_like(zeros, -1)
        return REMIState(
            **self._initial_fields(num_rows),
            num_bars=zeros,
            bar_start=zeros,
            bar_end=zeros,
            pitch=none,
            ends=torch.zeros(num_rows, len(self.families["Pitch"]), dtype=torch.long),
            tempo=none,
            chord=none,
            chords=torch.ones_like(zeros, dtype=torch.bool),
            progression=torch.full((num_rows, 1, 2), NEVER),
            metre=none,
            hold_tempo=torch.zeros_like(zeros, dtype=torch.bool),
            hold_metre=torch.zeros_like(zeros, dtype=torch.bool),
        )

    def _after_prompt(self, state: REMIState, prompts: Tensor) -> REMIState:
        family = self.family[prompts]
        no_note = ~self._is("Pitch", family).any(dim=1)
        chords = self._is("Chord", family).any(dim=1) | no_note
        return replace(state, chords=chords)

    def hold(self, state: REMIState, *, tempo: bool, metre: bool) -> REMIState:
        return replace(
            state,
            hold_tempo=torch.full_like(state.hold_tempo, tempo),
            hold_metre=torch.full_like(state.hold_metre, metre),
        )

    def harmonise(self, state: REMIState, progressions: Sequence[IntArray]) -> REMIState:
        free = torch.tensor([len(each) == 0 for each in progressions])
        return replace(state, chords=state.chords & free, progression=padded_rows(progressions))

    def _allowed(self, state: REMIState) -> Tensor:
        s = state.arrays()
        last, time, limit = (s[name][:, None] for name in ("last", "time", "limit"))
        ends, ranks, bar_end = s["ends"], self._rank_arrays, s["bar_end"][:, None]
        mask = self._follow_array[s["last"]]  # [B, V], a copy
        longest = 2 * (limit - time)  # in half grid steps
        mask[:, self._slices["Duration"]] &= ranks["Duration"] < longest
        if self._in_note[s["last"]].all():
            # Only a velocity or a duration may follow; what limits other tokens is not needed.
            return torch.from_numpy(mask)

        new_tempo = ranks["Tempo"] != s["tempo"][:, None]
        has_tempo = (s["tempo"] >= 0) | (ends > 0).any(axis=1)
        new_tempo &= ~(s["hold_tempo"] & has_tempo)[:, None]
        mask[:, self._slices["Tempo"]] &= new_tempo
        due, asked = _next_chord(s)
        new_chord = (ranks["Chord"] != s["chord"][:, None]) & s["chords"][:, None]
        new_chord |= (ranks["Chord"] == asked) & (due == time)
        mask[:, self._slices["Chord"]] &= new_chord
        must = (self._family_array[last] == self._numbers["Beat"]) & (due == time)
        mask &= ~must | (self._family_array == self._numbers["Chord"])
        higher = ranks["Pitch"] > s["pitch"][:, None]
        mask[:, self._slices["Pitch"]] &= (ends <= 2 * time) & higher

        # A Beat needs content: a change of tempo or chord, or else a pitch that is silent by then.
        # None, nor the bar's end, may pass the next chord of a progression.
        any_change = new_tempo.any(axis=1) | new_chord.any(axis=1)
        silent = np.where(any_change, 0, (ends.min(axis=1) + 1) // 2)[:, None]
        ready = np.minimum(silent, due)
        beat_time = s["bar_start"][:, None] + ranks["Beat"]
        after = time + (self._family_array[last] != self._numbers["Bar"])
        stop = np.minimum(bar_end, limit)
        beat = (beat_time >= np.maximum(after, ready)) & (beat_time < stop) & (beat_time <= due)
        mask[:, self._slices["Beat"]] &= beat
        num_more = self.max_bars - 1 - s["num_bars"][:, None]
        end = bar_end + self._length_array + num_more * self.longest_bar
        complete = due >= stop
        bar = (num_more >= 0) & (end > ready) & (bar_end < limit) & complete
        held = (s["hold_metre"] & (s["metre"] >= 0))[:, None]
        mask[:, self._slices["Bar"]] &= bar & (~held | (ranks["Bar"] == s["metre"][:, None]))
        mask[:, self._slices["EOS"]] &= complete
        return torch.from_numpy(mask)

    def _time_tokens(self, state: REMIState, until: Tensor) -> Tensor:
        is_beat = self._is("Beat", self.family)
        arrives = state.bar_start[:, None] + self.rank >= until[:, None]
        return self._is("Bar", self.family) | (is_beat & arrives)

    def advance(self, state: REMIState, tokens: Tensor) -> REMIState:
        s, ids = state.arrays(), tokens.numpy()
        family, rank = self._family_array[ids], self._rank_array[ids]
        bar, beat, pitch, tempo, chord, duration = (
            family == self._numbers[name]
            for name in ("Bar", "Beat", "Pitch", "Tempo", "Chord", "Duration")
        )
        bar_start = np.where(bar, s["bar_end"], s["bar_start"])
        time = np.where(beat, bar_start + rank, np.where(bar, bar_start, s["time"]))
        last_pitch = np.where(pitch, rank, np.where(bar | beat, -1, s["pitch"]))
        ends = s["ends"]
        rows = (duration & (last_pitch >= 0)).nonzero()[0]
        if len(rows):
            ends = ends.copy()
            ends[rows, last_pitch[rows]] = 2 * time[rows] + rank[rows] + 1
        length = self._length_array[np.where(bar, rank, 0)]
        changed: dict[str, Any] = {
            "num_bars": s["num_bars"] + bar,
            "bar_start": bar_start,
            "bar_end": np.where(bar, bar_start + length, s["bar_end"]),
            "pitch": last_pitch,
            "ends": ends,
            "tempo": np.where(tempo, rank, s["tempo"]),
            "chord": np.where(chord, rank, s["chord"]),
            "metre": np.where(bar, rank, s["metre"]),
        }
        fields = {name: torch.from_numpy(array) for name, array in changed.items()}
        now = torch.from_numpy(time)
        return replace(state, **self._next_fields(state, tokens, now), **fields)

    def _scan(self, state: REMIState, tokens: Tensor) -> REMIState:
        family, rank = self.family[tokens], self.rank[tokens]
        bar, beat, pitch = (self._is(name, family) for name in ("Bar", "Beat", "Pitch"))
        length = self.bar_lengths[rank.where(bar, 0)].where(bar, 0)
        bar_end = cumulate(state.bar_end, length)
        bar_start = latest(state.bar_start, bar, bar_end[:, :-1])
        moved = bar_start[:, 1:] + rank.where(beat, 0)
        time = latest(state.time, bar | beat, moved)
        last_pitch = latest(state.pitch, bar | beat | pitch, rank.where(pitch, -1))
        entry = last_pitch[:, 1:].where(self._is("Duration", family), -1)

        def current(name: str, start: Tensor) -> Tensor:
            return latest(start, self._is(name, family), rank)

        fields = {
            **self._scan_fields(state, tokens, time),
            "num_bars": cumulate(state.num_bars, bar.long()),
            "bar_start": bar_start,
            "bar_end": bar_end,
            "pitch": last_pitch,
            "ends": latest_rows(state.ends, entry, 2 * time[:, 1:] + rank + 1),
            "tempo": current("Tempo", state.tempo),
            "chord": current("Chord", state.chord),
            "metre": current("Bar", state.metre),
        }
        for name in ("chords", "progression", "hold_tempo", "hold_metre"):
            constant = getattr(state, name)[:, None]
            fields[name] = constant.expand(-1, time.shape[1], *constant.shape[2:])
        return REMIState(**fields)

    def _is(self, name: str, family: Tensor) -> Tensor:
        return family == self._numbers[name]


def _next_chord(s: Mapping[str, NDArray[Any]]) -> tuple[IntArray, IntArray]:
    """Return when a progression changes the chord next, which may be now, and to which. [B, 1]."""
    starts, indices = s["progression"][..., 0], s["progression"][..., 1]
    differs = np.ones_like(starts, dtype=bool)  # the end does
    is_ahead = starts[:, 1:] > s["time"][:, None]  # or in force: until the chord behind it begins
    differs[:, :-1] = is_ahead & (indices[:, :-1] != s["chord"][:, None])
    at = differs.argmax(axis=1)[:, None]
    due = np.maximum(np.take_along_axis(starts, at, 1), s["time"][:, None])
    return due, np.take_along_axis(indices, at, 1)
