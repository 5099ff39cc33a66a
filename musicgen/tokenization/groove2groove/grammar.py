"""The grammar of Groove2Groove as batched masks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from musicgen.tokenization.grammar import Grammar, GrammarState
from musicgen.tokenization.groove2groove.note_events import STEPS_PER_BEAT
from musicgen.tokenization.vocabulary import Vocabulary


@dataclass
class GrooveState(GrammarState):
    """The state of Groove2Groove sequences."""

    sounding: Tensor  # whether each voice (track and key) sounds [B, num_voices]


class GrooveGrammar(Grammar[GrooveState]):
    """BOS; at each time note-offs, then note-ons, both ascending; EOS once nothing sounds.

    A shift may follow another only if that was the longest one. At the maximum length no note
    begins, and all sounding ones are closed.
    """

    def __init__(
        self, vocabulary: Vocabulary, families: Mapping[str, range], max_beats: int
    ) -> None:
        super().__init__(vocabulary)
        self.bos = vocabulary.id("BOS")
        self.num_voices = len(families["NoteOn"])
        self.shifts = families["TimeShift"]
        self.longest_shift = self.shifts.stop - 1
        self.limit = max_beats * STEPS_PER_BEAT

    def _initial_state(self, num_rows: int) -> GrooveState:
        sounding = torch.zeros(num_rows, self.num_voices, dtype=torch.bool)
        return GrooveState(**self._initial_fields(num_rows), sounding=sounding)

    def _allowed(self, state: GrooveState) -> Tensor:
        num_voices, sounding, device = self.num_voices, state.sounding, state.last.device
        last, time = state.last[:, None], state.time[:, None]  # [B, 1]
        after_on = last < num_voices
        after_off = (last >= num_voices) & (last < 2 * num_voices)
        begun = last != self.pad
        any_sounding = sounding.any(dim=1, keepdim=True)
        at_limit = time >= self.limit
        voice = torch.arange(num_voices, device=device)

        lowest_on = torch.where(after_on, last + 1, 0)
        on = ~sounding & (voice >= lowest_on) & begun & ~at_limit

        lowest_off = torch.where(after_off, last - num_voices + 1, 0)
        off = sounding & (voice >= lowest_off) & ~after_on
        # At the limit every sounding voice must be closed: there is no later time.
        first_sounding = sounding.to(torch.uint8).argmax(dim=1, keepdim=True)
        off &= ~at_limit | (voice == first_sounding)

        forward = torch.arange(1, len(self.shifts) + 1, device=device)
        tick = time % STEPS_PER_BEAT
        arrival = time - tick + forward
        may_shift = after_on | after_off | (last == self.longest_shift) | (last == self.bos)
        shift = may_shift & (forward > tick)
        shift &= (arrival < self.limit) | ((arrival == self.limit) & any_sounding)

        eos = ~any_sounding & (after_off | (last == self.bos))
        return torch.cat([on, off, shift, eos, ~begun, torch.zeros_like(begun)], dim=1)

    def _time_tokens(self, state: GrooveState, until: Tensor) -> Tensor:
        tokens = torch.arange(len(self.vocabulary), device=state.last.device)
        # An event must follow any shift but the longest.
        ready = self._arrival(state.time[:, None], tokens) >= until[:, None]
        return self._is_shift(tokens) & (ready | (tokens == self.longest_shift))

    def advance(self, state: GrooveState, tokens: Tensor) -> GrooveState:
        event_voice = torch.where(tokens < 2 * self.num_voices, tokens % self.num_voices, -1)
        toggled = torch.arange(self.num_voices, device=tokens.device) == event_voice[:, None]
        arrival = self._arrival(state.time, tokens)
        time = torch.where(self._is_shift(tokens), arrival, state.time)
        fields = self._next_fields(state, tokens, time)
        return GrooveState(**fields, sounding=state.sounding ^ toggled)

    def _is_shift(self, tokens: Tensor) -> Tensor:
        return (tokens >= self.shifts.start) & (tokens < self.shifts.stop)

    def _arrival(self, time: Tensor, shifts: Tensor) -> Tensor:
        """Return the time that shifts lead to from `time`, in ticks."""
        return time - time % STEPS_PER_BEAT + shifts - self.shifts.start + 1
