"""The canonical form of Groove2Groove, as batched masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from musicgen.tokenization.grammar import Grammar, GrammarState

if TYPE_CHECKING:
    from musicgen.tokenization.groove2groove import Groove2Groove


@dataclass
class GrooveState(GrammarState):
    """What of a Groove2Groove sequence bears on its continuation.

    Attributes:
        sounding: the voices (track and key) whose note is not yet off. [B, num_voices]
    """

    sounding: Tensor


class GrooveGrammar(Grammar[GrooveState]):
    """BOS first; at one time offs, then ons, each ascending; EOS when nothing sounds.

    A shift follows another only if that was the longest one. Nothing begins at the greatest
    length, where all that sounds is closed.
    """

    def __init__(self, tokenizer: Groove2Groove) -> None:
        super().__init__(tokenizer.vocabulary)
        self.bos = self.vocabulary.id("BOS")
        self.num_voices = tokenizer.events.num_voices
        self.shifts = tokenizer.families["TimeShift"]
        self.steps_per_beat = tokenizer.steps_per_beat
        self.limit = tokenizer.max_beats * tokenizer.steps_per_beat

    def _begin(self, num_rows: int) -> GrooveState:
        return GrooveState(
            time=torch.zeros(num_rows, dtype=torch.long),
            finished=torch.zeros(num_rows, dtype=torch.bool),
            last=torch.full((num_rows,), self.pad),
            sounding=torch.zeros(num_rows, self.num_voices, dtype=torch.bool),
        )

    def _allowed(self, state: GrooveState) -> Tensor:
        num_voices, sounding, device = self.num_voices, state.sounding, state.last.device
        last, time = state.last[:, None], state.time[:, None]  # [B, 1]
        after_on = last < num_voices
        after_off = (last >= num_voices) & (last < 2 * num_voices)
        begun = last != self.pad
        open_notes = sounding.any(dim=1, keepdim=True)
        at_limit = time >= self.limit
        voice = torch.arange(num_voices, device=device)

        lowest_on = torch.where(after_on, last + 1, 0)
        on = ~sounding & (voice >= lowest_on) & begun & ~at_limit

        lowest_off = torch.where(after_off, last - num_voices + 1, 0)
        off = sounding & (voice >= lowest_off) & ~after_on
        # At the limit no voice may be passed over: there is no later time to close it.
        first_open = sounding.to(torch.uint8).argmax(dim=1, keepdim=True)
        off &= ~at_limit | (voice == first_open)

        forward = torch.arange(1, len(self.shifts) + 1, device=device)
        tick = time % self.steps_per_beat
        arrival = time - tick + forward
        longest = self.shifts.stop - 1
        may_shift = after_on | after_off | (last == longest) | (last == self.bos)
        shift = may_shift & (forward > tick)
        shift &= (arrival < self.limit) | ((arrival == self.limit) & open_notes)

        eos = ~open_notes & (after_off | (last == self.bos))
        return torch.cat([on, off, shift, eos, ~begun, torch.zeros_like(begun)], dim=1)

    def _passing(self, state: GrooveState, until: Tensor) -> Tensor:
        tokens = torch.arange(len(self.vocabulary), device=state.last.device)
        is_shift = (tokens >= self.shifts.start) & (tokens < self.shifts.stop)
        beat = state.time - state.time % self.steps_per_beat
        arrival = beat[:, None] + tokens - self.shifts.start + 1
        # An event must follow any shift but the longest.
        longest = tokens == self.shifts.stop - 1
        return is_shift & (longest | (arrival >= until[:, None]))

    def advance(self, state: GrooveState, tokens: Tensor) -> GrooveState:
        is_event = tokens < 2 * self.num_voices
        event_voice = torch.where(is_event, tokens % self.num_voices, -1)
        toggled = torch.arange(self.num_voices, device=tokens.device) == event_voice[:, None]
        is_shift = (tokens >= self.shifts.start) & (tokens < self.shifts.stop)
        beat = state.time - state.time % self.steps_per_beat
        arrival = beat + tokens - self.shifts.start + 1
        return GrooveState(
            time=torch.where(is_shift, arrival, state.time),
            finished=state.finished | (tokens == self.eos),
            last=tokens,
            sounding=state.sounding ^ toggled,
        )
