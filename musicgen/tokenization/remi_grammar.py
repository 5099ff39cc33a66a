"""The canonical form of REMI, as batched masks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from musicgen.tokenization.grammar import Grammar, GrammarState

if TYPE_CHECKING:
    from musicgen.tokenization.remi import REMI

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
"""Which family may follow which, before beats, pitches and repetitions are looked at."""


@dataclass
class REMIState(GrammarState):
    """What of a REMI sequence bears on its continuation; P is the number of pitches.

    Attributes:
        num_bars: bars begun. [B]
        bar_start, bar_end: grid steps at which the last of them begins and ends. [B]
        beat: grid step of the last Beat in it, -1 before the first. [B]
        pitch: index of the last pitch at this position, -1 before the first. [B]
        ends: when each pitch falls silent, in half grid steps. [B, P]
        tempo, chord: indices of those in force, -1 before the first. [B]
        chords: Chord tokens are allowed. [B]
    """

    num_bars: Tensor
    bar_start: Tensor
    bar_end: Tensor
    beat: Tensor
    pitch: Tensor
    ends: Tensor
    tempo: Tensor
    chord: Tensor
    chords: Tensor


class _Tables(NamedTuple):
    """Constants of a grammar on one device.

    Attributes:
        follow: which token's family may follow which token's. [V, V]
        kind, place: number of a token's family, -1 of PAD, and index in it. [V]
        lengths: of bars, in grid steps. [num_metres]
    """

    follow: Tensor
    kind: Tensor
    place: Tensor
    lengths: Tensor


class REMIGrammar(Grammar[REMIState]):
    """Bars of strictly later Beats, each with content: what changes, then ascending notes.

    A sounding pitch is not struck again. Chords follow a prompt only if it has chords itself,
    or no note yet.
    """

    def __init__(self, tokenizer: REMI) -> None:
        super().__init__(tokenizer.vocabulary)
        self.families = tokenizer.families
        self.max_bars = tokenizer.max_bars
        self.longest_bar = int(tokenizer.metres.lengths.max())
        size = len(self.vocabulary)
        follow = torch.zeros(size, size, dtype=torch.bool)
        for family, followers in FOLLOWERS.items():
            ids = self.families[family] if family else range(self.pad, self.pad + 1)
            for follower in followers:
                to = self.families[follower]
                follow[ids.start : ids.stop, to.start : to.stop] = True
        self._number = {family: number for number, family in enumerate(self.families)}
        kind, place = torch.full((size,), -1), torch.zeros(size, dtype=torch.long)
        for family, ids in self.families.items():
            kind[ids.start : ids.stop] = self._number[family]
            place[ids.start : ids.stop] = torch.arange(len(ids))
        lengths = torch.from_numpy(tokenizer.metres.lengths)
        self._tables = {torch.device("cpu"): _Tables(follow, kind, place, lengths)}

    def _begin(self, num_rows: int) -> REMIState:
        none = torch.full((num_rows,), -1)
        return REMIState(
            time=torch.zeros_like(none),
            finished=torch.zeros_like(none, dtype=torch.bool),
            last=torch.full_like(none, self.pad),
            num_bars=torch.zeros_like(none),
            bar_start=torch.zeros_like(none),
            bar_end=torch.zeros_like(none),
            beat=none,
            pitch=none,
            ends=torch.zeros(num_rows, len(self.families["Pitch"]), dtype=torch.long),
            tempo=none,
            chord=none,
            chords=torch.ones_like(none, dtype=torch.bool),
        )

    def _after_prompt(self, state: REMIState, prompts: Tensor) -> REMIState:
        kind = self._on(prompts.device).kind[prompts]
        no_note = ~self._is("Pitch", kind).any(dim=1)
        return replace(state, chords=self._is("Chord", kind).any(dim=1) | no_note)

    def _allowed(self, state: REMIState) -> Tensor:
        tables = self._on(state.last.device)
        mask = tables.follow[state.last]  # [B, V], a copy

        # Each line narrows one family's columns by what the state says.
        new_tempo = self._columns(tables.place, "Tempo") != state.tempo[:, None]
        self._columns(mask, "Tempo").logical_and_(new_tempo)
        new_chord = self._columns(tables.place, "Chord") != state.chord[:, None]
        new_chord &= state.chords[:, None]
        self._columns(mask, "Chord").logical_and_(new_chord)
        silent = state.ends <= 2 * state.time[:, None]
        higher = self._columns(tables.place, "Pitch") > state.pitch[:, None]
        self._columns(mask, "Pitch").logical_and_(silent & higher)

        # A Beat needs content: if nothing is left to change, a pitch that is silent by then.
        any_change = new_tempo.any(dim=1) | new_chord.any(dim=1)
        ready = torch.where(any_change, 0, (state.ends.amin(dim=1) + 1) // 2)[:, None]
        time = state.bar_start[:, None] + self._columns(tables.place, "Beat")
        bar_end = state.bar_end[:, None]
        beat = (time > state.beat[:, None]) & (time >= ready) & (time < bar_end)
        self._columns(mask, "Beat").logical_and_(beat)
        num_more = self.max_bars - 1 - state.num_bars[:, None]
        end = bar_end + tables.lengths + num_more * self.longest_bar
        self._columns(mask, "Bar").logical_and_((num_more >= 0) & (end > ready))
        return mask

    def _passing(self, state: REMIState, until: Tensor) -> Tensor:
        # Prompts end at bars, so that Bar is all it takes.
        kind = self._on(state.last.device).kind
        return self._is("Bar", kind).expand(len(until), -1)

    def advance(self, state: REMIState, tokens: Tensor) -> REMIState:
        tables = self._on(tokens.device)
        kind, place = tables.kind[tokens], tables.place[tokens]
        bar, beat = self._is("Bar", kind), self._is("Beat", kind)
        length = tables.lengths[torch.where(bar, place, 0)]
        bar_start = torch.where(bar, state.bar_end, state.bar_start)
        time = torch.where(beat, bar_start + place, torch.where(bar, bar_start, state.time))

        pitch = torch.where(bar | beat, -1, state.pitch)
        pitch = torch.where(self._is("Pitch", kind), place, pitch)
        struck = self._columns(tables.place, "Pitch") == pitch[:, None]
        struck &= self._is("Duration", kind)[:, None]
        end = 2 * time + place + 1
        return REMIState(
            time=time,
            finished=state.finished | (tokens == self.eos),
            last=tokens,
            num_bars=state.num_bars + bar,
            bar_start=bar_start,
            bar_end=torch.where(bar, bar_start + length, state.bar_end),
            beat=torch.where(bar, -1, torch.where(beat, time, state.beat)),
            pitch=pitch,
            ends=torch.where(struck, end[:, None], state.ends),
            tempo=torch.where(self._is("Tempo", kind), place, state.tempo),
            chord=torch.where(self._is("Chord", kind), place, state.chord),
            chords=state.chords,
        )

    def _on(self, device: torch.device) -> _Tables:
        if device not in self._tables:
            tables = self._tables[torch.device("cpu")]
            self._tables[device] = _Tables(*(table.to(device) for table in tables))
        return self._tables[device]

    def _is(self, family: str, kind: Tensor) -> Tensor:
        return kind == self._number[family]

    def _columns(self, table: Tensor, family: str) -> Tensor:
        ids = self.families[family]
        return table[..., ids.start : ids.stop]
