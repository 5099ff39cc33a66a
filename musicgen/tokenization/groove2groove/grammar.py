"""The grammar of Groove2Groove as batched masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from musicgen.errors import ParameterError
from musicgen.tokenization.grammar import (
    NEVER,
    Grammar,
    GrammarState,
    cumulate,
    latest,
    latest_rows,
)
from musicgen.tokenization.groove2groove.note_events import NUM_KEYS, STEPS_PER_BEAT
from musicgen.tokenization.vocabulary import IntArray, Vocabulary


@dataclass
class GrooveState(GrammarState):
    """The state of Groove2Groove sequences."""

    ends: Tensor  # time by which each voice (track and key) must end, 0 if silent [B, num_voices]


class GrooveGrammar(Grammar[GrooveState]):
    """BOS; at each time note-offs, then note-ons, both ascending; EOS once nothing sounds.

    A shift may follow another only if that was the longest one. No note outlasts its maximum
    length or that of the piece: time passes at most to the end of the next such note, where it is
    closed before anything else. At the maximum length of a piece no note begins.

    Args:
        max_durations: maximum length of a note of each voice, in ticks. [num_voices]
        limit: maximum length of a piece, in ticks.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        families: Mapping[str, range],
        max_durations: IntArray,
        limit: int,
    ) -> None:
        super().__init__(vocabulary)
        self.bos = vocabulary.id("BOS")
        self.num_voices = len(families["NoteOn"])
        self.shifts = families["TimeShift"]
        self.longest_shift = self.shifts.stop - 1
        self.limit = limit
        self.max_durations = torch.from_numpy(max_durations)
        self._voices = np.arange(self.num_voices)
        self._forward = np.arange(1, len(self.shifts) + 1)  # ticks of a shift from the beat
        self._columns = [self.num_voices, 2 * self.num_voices, self.shifts.stop]
        self._max_notes: Tensor | None = None  # of each instrument that sound at once

    def bound(self, max_notes: int | Sequence[int]) -> None:
        num_instruments = self.num_voices // NUM_KEYS
        each = [max_notes] * num_instruments if isinstance(max_notes, int) else [*max_notes]
        if len(each) != num_instruments:
            expected = f"expected one number, or {num_instruments}: one for each instrument"
            raise ParameterError("max_notes", each, expected)
        self._max_notes = torch.tensor(each)

    def tables(self) -> dict[str, Any]:
        """Return the keys of an instrument, and lengths in ticks, by instrument and of a piece."""
        return {
            "keys": NUM_KEYS,
            "max_durations": self.max_durations[::NUM_KEYS].tolist(),
            "max_length": self.limit,
        }

    def _initial_state(self, num_rows: int) -> GrooveState:
        ends = torch.zeros(num_rows, self.num_voices, dtype=torch.long)
        fields = self._initial_fields(num_rows)
        fields["limit"] = torch.full_like(fields["limit"], self.limit)
        return GrooveState(**fields, ends=ends)

    def close(self, state: GrooveState, limit: Tensor) -> GrooveState:
        state = super().close(state, limit)
        return replace(state, ends=torch.minimum(state.ends, state.limit[:, None]))

    def _allowed(self, state: GrooveState) -> Tensor:
        s = state.arrays()
        num_voices = self.num_voices
        last, time, ends = s["last"][:, None], s["time"][:, None], s["ends"]
        after_on = last < num_voices
        after_off = (last >= num_voices) & (last < 2 * num_voices)
        after_bos, begun = last == self.bos, last != self.pad
        sounding = ends != 0
        next_end, next_voice = (x.numpy() for x in self._next_end(state))
        any_sounding = next_voice < num_voices
        is_due = next_end <= time
        mask = np.empty((len(last), len(self.vocabulary)), dtype=bool)
        on, off, shift, others = np.split(mask, self._columns, axis=1)

        lowest_on = np.where(begun & ~is_due, np.where(after_on, last + 1, 0), num_voices)
        np.logical_and(~sounding, self._voices >= lowest_on, out=on)
        if self._max_notes is not None:
            num_sounding = sounding.reshape(len(last), num_voices // NUM_KEYS, NUM_KEYS).sum(-1)
            full = num_sounding >= self._max_notes.numpy()
            on &= ~full.repeat(NUM_KEYS, axis=1)

        lowest_off = np.where(after_on, num_voices, np.where(after_off, last - num_voices + 1, 0))
        np.logical_and(sounding, self._voices >= lowest_off, out=off)
        # Offs ascend, so that none may pass over a voice that must end now.
        off &= self._voices <= np.where(is_due, next_voice, num_voices)

        tick = time % STEPS_PER_BEAT
        may_shift = after_on | after_off | (last == self.longest_shift) | after_bos
        np.logical_and(may_shift, self._forward > tick, out=shift)
        # Without a note to close there, nothing can follow at the limit.
        shift &= time - tick + self._forward < next_end + any_sounding
        others[:, :1] = ~any_sounding & (after_off | after_bos)  # EOS
        others[:, 1:2] = ~begun  # BOS
        others[:, 2:] = False
        return torch.from_numpy(mask)

    def _time_tokens(self, state: GrooveState, until: Tensor) -> Tensor:
        tokens = torch.arange(len(self.vocabulary))
        next_end, time = self._next_end(state)[0], state.time[:, None]
        # An event must follow any shift but the longest.
        ready = self._arrival(time, tokens) >= torch.minimum(until[:, None], next_end)
        closes = (tokens >= self.num_voices) & (tokens < 2 * self.num_voices) & (next_end <= time)
        return self._is_shift(tokens) & (ready | (tokens == self.longest_shift)) | closes

    def advance(self, state: GrooveState, tokens: Tensor) -> GrooveState:
        event_voice = torch.where(tokens < 2 * self.num_voices, tokens % self.num_voices, -1)
        toggled = torch.arange(self.num_voices) == event_voice[:, None]
        arrival = self._arrival(state.time, tokens)
        time = torch.where(self._is_shift(tokens), arrival, state.time)
        end = torch.minimum(time[:, None] + self.max_durations, state.limit[:, None])
        changed = self._next_fields(state, tokens, time)
        begun = torch.where((tokens < self.num_voices)[:, None], end, 0)
        return replace(state, **changed, ends=torch.where(toggled, begun, state.ends))

    def _scan(self, state: GrooveState, tokens: Tensor) -> GrooveState:
        shifts = self._is_shift(tokens)
        forward = tokens - self.shifts.start + 1
        beat = cumulate(state.time // STEPS_PER_BEAT, (forward // STEPS_PER_BEAT).where(shifts, 0))
        tick = latest(state.time % STEPS_PER_BEAT, shifts, forward % STEPS_PER_BEAT)
        time = beat * STEPS_PER_BEAT + tick
        voice = (tokens % self.num_voices).where(tokens < 2 * self.num_voices, -1)
        end = torch.minimum(time[:, 1:] + self.max_durations[voice], state.limit[:, None])
        ends = latest_rows(state.ends, voice, end.where(tokens < self.num_voices, 0))
        return GrooveState(**self._scan_fields(state, tokens, time), ends=ends)

    def _next_end(self, state: GrooveState) -> tuple[Tensor, Tensor]:
        """Return the time by which a note or else the piece must end, and its voice. [B, 1].

        The lowest voice where several must end, `num_voices` if none sounds.
        """
        ends = torch.where(state.ends.bool(), state.ends, NEVER)
        end, voice = ends.min(dim=1, keepdim=True)
        sounds = end < NEVER
        return end.where(sounds, state.limit[:, None]), voice.where(sounds, self.num_voices)

    def _is_shift(self, tokens: Tensor) -> Tensor:
        return (tokens >= self.shifts.start) & (tokens < self.shifts.stop)

    def _arrival(self, time: Tensor, shifts: Tensor) -> Tensor:
        """Return the time that shifts lead to from `time`, in ticks."""
        return time - time % STEPS_PER_BEAT + shifts - self.shifts.start + 1
