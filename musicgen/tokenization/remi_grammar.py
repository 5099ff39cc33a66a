"""The canonical form of REMI, as batched masks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

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
        pitch: index of the last pitch at this position, -1 before the first. [B]
        ends: when each pitch falls silent, in half grid steps. [B, P]
        tempo, chord: the tokens in force, -1 before the first. [B]
        chords: Chord tokens are allowed. [B]
    """

    num_bars: Tensor
    bar_start: Tensor
    bar_end: Tensor
    pitch: Tensor
    ends: Tensor
    tempo: Tensor
    chord: Tensor
    chords: Tensor


class REMIGrammar(Grammar[REMIState]):
    """Bars of strictly later Beats, each with content: what changes, then ascending notes.

    A sounding pitch is not struck again. Chords follow a prompt only if it has chords itself,
    or no note yet.
    """

    def __init__(self, tokenizer: REMI) -> None:
        super().__init__(tokenizer.vocabulary)
        self.families = tokenizer.families
        self.bar_lengths = torch.from_numpy(tokenizer.metres.lengths)
        self.max_bars = tokenizer.max_bars
        follow = torch.zeros(len(self.vocabulary), len(self.vocabulary), dtype=torch.bool)
        for family, followers in FOLLOWERS.items():
            ids = self.families[family] if family else range(self.pad, self.pad + 1)
            for follower in followers:
                to = self.families[follower]
                follow[ids.start : ids.stop, to.start : to.stop] = True
        self._follow = {torch.device("cpu"): follow}

    def _begin(self, num_rows: int) -> REMIState:
        none = torch.full((num_rows,), -1)
        return REMIState(
            time=torch.zeros_like(none),
            finished=torch.zeros_like(none, dtype=torch.bool),
            last=torch.full_like(none, self.pad),
            num_bars=torch.zeros_like(none),
            bar_start=torch.zeros_like(none),
            bar_end=torch.zeros_like(none),
            pitch=none,
            ends=torch.zeros(num_rows, len(self.families["Pitch"]), dtype=torch.long),
            tempo=none,
            chord=none,
            chords=torch.ones_like(none, dtype=torch.bool),
        )

    def _after_prompt(self, state: REMIState, prompts: Tensor) -> REMIState:
        no_note = ~self._within(prompts, "Pitch").any(dim=1)
        return replace(state, chords=self._within(prompts, "Chord").any(dim=1) | no_note)

    def _allowed(self, state: REMIState) -> Tensor:
        device = state.last.device
        if device not in self._follow:
            self._follow[device] = self._follow[torch.device("cpu")].to(device)
        mask = self._follow[device][state.last]  # [B, V], a copy

        # Each line narrows one family's columns by what the state says.
        tempo = self.families["Tempo"].start + self._index("Tempo", device)
        tempo_changes = tempo != state.tempo[:, None]
        self._columns(mask, "Tempo").logical_and_(tempo_changes)
        chord = self.families["Chord"].start + self._index("Chord", device)
        chord_changes = (chord != state.chord[:, None]) & state.chords[:, None]
        self._columns(mask, "Chord").logical_and_(chord_changes)
        silent = state.ends <= 2 * state.time[:, None]
        higher = self._index("Pitch", device) > state.pitch[:, None]
        self._columns(mask, "Pitch").logical_and_(silent & higher)

        # A Beat needs content: where nothing is left to change, a pitch that is silent by then.
        any_change = tempo_changes.any(dim=1) | chord_changes.any(dim=1)
        first_silence = (state.ends.amin(dim=1) + 1) // 2
        ready = torch.where(any_change, 0, first_silence)[:, None]
        time = state.bar_start[:, None] + self._index("Beat", device)
        later = time > torch.where(self._within(state.last, "Bar"), -1, state.time)[:, None]
        beat = later & (time >= ready) & (time < state.bar_end[:, None])
        self._columns(mask, "Beat").logical_and_(beat)
        lengths = self.bar_lengths.to(device)
        num_more = self.max_bars - state.num_bars[:, None] - 1
        end = state.bar_end[:, None] + lengths + num_more * lengths.max()
        self._columns(mask, "Bar").logical_and_((num_more >= 0) & (end > ready))
        return mask

    def _passing(self, state: REMIState, until: Tensor) -> Tensor:
        # Prompts end at bars, so that Bar is all it takes.
        tokens = torch.arange(len(self.vocabulary), device=state.last.device)
        return self._within(tokens, "Bar").expand(len(until), -1)

    def advance(self, state: REMIState, tokens: Tensor) -> REMIState:
        bar = self._within(tokens, "Bar")
        beat = self._within(tokens, "Beat")
        metre = torch.where(bar, tokens - self.families["Bar"].start, 0)
        length = self.bar_lengths.to(tokens.device)[metre]
        bar_start = torch.where(bar, state.bar_end, state.bar_start)
        bar_end = torch.where(bar, bar_start + length, state.bar_end)
        time = torch.where(beat, bar_start + tokens - self.families["Beat"].start, state.time)
        time = torch.where(bar, bar_start, time)

        pitch = torch.where(bar | beat, -1, state.pitch)
        pitch_index = tokens - self.families["Pitch"].start
        pitch = torch.where(self._within(tokens, "Pitch"), pitch_index, pitch)
        struck = self._index("Pitch", tokens.device) == pitch[:, None]
        struck &= self._within(tokens, "Duration")[:, None]
        end = 2 * time + tokens - self.families["Duration"].start + 1
        return REMIState(
            time=time,
            finished=state.finished | (tokens == self.eos),
            last=tokens,
            num_bars=state.num_bars + bar.long(),
            bar_start=bar_start,
            bar_end=bar_end,
            pitch=pitch,
            ends=torch.where(struck, end[:, None], state.ends),
            tempo=torch.where(self._within(tokens, "Tempo"), tokens, state.tempo),
            chord=torch.where(self._within(tokens, "Chord"), tokens, state.chord),
            chords=state.chords,
        )

    def _within(self, tokens: Tensor, family: str) -> Tensor:
        ids = self.families[family]
        return (tokens >= ids.start) & (tokens < ids.stop)

    def _index(self, family: str, device: torch.device) -> Tensor:
        return torch.arange(len(self.families[family]), device=device)

    def _columns(self, mask: Tensor, family: str) -> Tensor:
        ids = self.families[family]
        return mask[:, ids.start : ids.stop]
