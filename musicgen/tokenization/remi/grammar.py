"""The grammar of REMI as batched masks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from musicgen.tokenization.grammar import Grammar, GrammarState, cumulate, latest, latest_rows
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
    chords: Tensor  # whether Chord tokens are allowed
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
        self.note_ons, self.bar_lines = families["Pitch"], families["Bar"]
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
        self.follow = follow  # whether a token's family may follow another token's [V, V]
        self.family = family  # number of a token's family, -1 for PAD [V]
        self.rank = rank  # index of a token in its family [V]
        self.bar_lengths = torch.from_numpy(bar_lengths)

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
            metre=none,
            hold_tempo=torch.zeros_like(zeros, dtype=torch.bool),
            hold_metre=torch.zeros_like(zeros, dtype=torch.bool),
        )

    def _after_prompt(self, state: REMIState, prompts: Tensor) -> REMIState:
        family = self.family[prompts]
        no_note = ~self._is("Pitch", family).any(dim=1)
        return replace(state, chords=self._is("Chord", family).any(dim=1) | no_note)

    def hold(self, state: REMIState, *, tempo: bool, metre: bool) -> REMIState:
        return replace(
            state,
            hold_tempo=torch.full_like(state.hold_tempo, tempo),
            hold_metre=torch.full_like(state.hold_metre, metre),
        )

    def _allowed(self, state: REMIState) -> Tensor:
        mask = self.follow[state.last]  # [B, V], a copy

        new_tempo = self._ranks("Tempo") != state.tempo[:, None]
        has_tempo = (state.tempo >= 0) | (state.ends > 0).any(dim=1)
        new_tempo &= ~(state.hold_tempo & has_tempo)[:, None]
        self._columns(mask, "Tempo").logical_and_(new_tempo)
        new_chord = self._ranks("Chord") != state.chord[:, None]
        new_chord &= state.chords[:, None]
        self._columns(mask, "Chord").logical_and_(new_chord)
        silent = state.ends <= 2 * state.time[:, None]
        higher = self._ranks("Pitch") > state.pitch[:, None]
        self._columns(mask, "Pitch").logical_and_(silent & higher)

        # A Beat needs content: a change of tempo or chord, or else a pitch that is silent by then.
        any_change = new_tempo.any(dim=1) | new_chord.any(dim=1)
        ready = torch.where(any_change, 0, (state.ends.amin(dim=1) + 1) // 2)[:, None]
        time = state.bar_start[:, None] + self._ranks("Beat")
        bar_end = state.bar_end[:, None]
        earliest = state.time + ~self._is("Bar", self.family[state.last])
        limit = state.limit[:, None]
        beat = (time >= earliest[:, None]) & (time >= ready) & (time < bar_end.minimum(limit))
        self._columns(mask, "Beat").logical_and_(beat)
        num_more = self.max_bars - 1 - state.num_bars[:, None]
        end = bar_end + self.bar_lengths + num_more * self.longest_bar
        bar = (num_more >= 0) & (end > ready)
        held = (state.hold_metre & (state.metre >= 0))[:, None]
        bar &= ~held | (self._ranks("Bar") == state.metre[:, None])
        self._columns(mask, "Bar").logical_and_(bar & (bar_end < limit))
        longest = 2 * (limit - state.time[:, None])  # in half grid steps
        self._columns(mask, "Duration").logical_and_(self._ranks("Duration") < longest)
        return mask

    def _time_tokens(self, state: REMIState, until: Tensor) -> Tensor:
        is_beat = self._is("Beat", self.family)
        arrives = state.bar_start[:, None] + self.rank >= until[:, None]
        return self._is("Bar", self.family) | (is_beat & arrives)

    def advance(self, state: REMIState, tokens: Tensor) -> REMIState:
        family, rank = self.family[tokens], self.rank[tokens]
        bar, beat = self._is("Bar", family), self._is("Beat", family)
        length = self.bar_lengths[torch.where(bar, rank, 0)]
        bar_start = torch.where(bar, state.bar_end, state.bar_start)
        time = torch.where(beat, bar_start + rank, torch.where(bar, bar_start, state.time))

        pitch = torch.where(bar | beat, -1, state.pitch)
        pitch = torch.where(self._is("Pitch", family), rank, pitch)
        begun = self._ranks("Pitch") == pitch[:, None]
        begun &= self._is("Duration", family)[:, None]
        end = 2 * time + rank + 1
        return replace(
            state,
            **self._next_fields(state, tokens, time),
            num_bars=state.num_bars + bar,
            bar_start=bar_start,
            bar_end=torch.where(bar, bar_start + length, state.bar_end),
            pitch=pitch,
            ends=torch.where(begun, end[:, None], state.ends),
            tempo=torch.where(self._is("Tempo", family), rank, state.tempo),
            chord=torch.where(self._is("Chord", family), rank, state.chord),
            metre=torch.where(bar, rank, state.metre),
        )

    def _scan(self, state: REMIState, tokens: Tensor) -> REMIState:
        family, rank = self.family[tokens], self.rank[tokens]
        bar, beat, pitch = (self._is(name, family) for name in ("Bar", "Beat", "Pitch"))
        length = self.bar_lengths[rank.where(bar, 0)].where(bar, 0)
        bar_end = cumulate(state.bar_end, length)
        bar_start = latest(state.bar_start, bar, bar_end[:, :-1])
        moved = bar_start[:, 1:] + rank.where(beat, 0)
        time = latest(state.time, bar | beat, moved)
        last_pitch = latest(state.pitch, bar | beat | pitch, rank.where(pitch, -1))
        note_ends = self._is("Duration", family)
        entry = last_pitch[:, 1:].where(note_ends, -1)

        def current(name: str, start: Tensor) -> Tensor:
            return latest(start, self._is(name, family), rank)

        fields = {
            **self._scan_fields(state, tokens, time),
            "num_bars": cumulate(state.num_bars, bar),
            "bar_start": bar_start,
            "bar_end": bar_end,
            "pitch": last_pitch,
            "ends": latest_rows(state.ends, entry, 2 * time[:, 1:] + rank + 1),
            "tempo": current("Tempo", state.tempo),
            "chord": current("Chord", state.chord),
            "metre": current("Bar", state.metre),
        }
        constant = {name: getattr(state, name) for name in ("chords", "hold_tempo", "hold_metre")}
        fields |= {name: each[:, None].expand_as(time) for name, each in constant.items()}
        return REMIState(**fields)

    def _is(self, name: str, family: Tensor) -> Tensor:
        return family == self._numbers[name]

    def _ranks(self, name: str) -> Tensor:
        return torch.arange(len(self.families[name]))

    def _columns(self, mask: Tensor, name: str) -> Tensor:
        ids = self.families[name]
        return mask[:, ids.start : ids.stop]
