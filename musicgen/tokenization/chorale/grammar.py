"""The grammar of Chorale as batched masks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from musicgen.tokenization.chorale.arrangement import LEAD, Arrangements, BoolArray
from musicgen.tokenization.chorale.frames import NUM_VOICES
from musicgen.tokenization.grammar import NEVER, Grammar, GrammarState, cumulate, latest
from musicgen.tokenization.vocabulary import IntArray, Vocabulary, within

_RECENT = NUM_VOICES * (LEAD + 2)  # tokens from which parallels are seen
_UNISON, _FIFTH = 0, 7


@dataclass
class ChoraleState(GrammarState):
    """The state of Chorale sequences. [B] each."""

    sounding: Tensor  # whether a leading voice sounds in their last or current frame
    header: Tensor  # the first token, see `Arrangements`; PAD before it
    end: Tensor  # the frame in which a leading voice is empty for the first time
    recent: Tensor  # the pitches of the last tokens, counted from the lowest; -1: none [B, _RECENT]


class ChoraleGrammar(Grammar[ChoraleState]):
    """A header, frames of four voices, and EOS.

    After BOS all frames have four voices, and EOS may follow a frame in which a voice sounds, or
    BOS. The other headers say which voices of which frames are empty, and where EOS stands, see
    `arrangement`; there the leading voices end with a frame in which one of them sounds.

    Args:
        limit: maximum number of frames.
    """

    def __init__(self, vocabulary: Vocabulary, families: Mapping[str, range], limit: int) -> None:
        super().__init__(vocabulary)
        self.bos = vocabulary.id("BOS")
        self.silence = vocabulary.id("Silence")
        self.families = families
        self.pitches = families["Pitch"]
        self.limit = limit
        self.may_be_parallel = True
        self.arrangements = Arrangements(len(vocabulary), families)
        # The first and the last of the leading voices, by header.
        leading = self.arrangements.leading
        self._first = leading.argmax(axis=1)
        self._last = NUM_VOICES - 1 - leading[:, ::-1].argmax(axis=1)

    def tables(self) -> dict[str, Any]:
        """Return the voices of a frame, and how many frames a piece may have."""
        return {"voices": NUM_VOICES, "max_frames": self.limit}

    def _initial_state(self, num_rows: int) -> ChoraleState:
        return ChoraleState(
            **self._initial_fields(num_rows),
            sounding=torch.zeros(num_rows, dtype=torch.bool),
            header=torch.full((num_rows,), self.pad),
            end=torch.full((num_rows,), NEVER),
            recent=torch.full((num_rows, _RECENT), -1),
        )

    def forbid_parallels(self) -> None:
        self.may_be_parallel = False

    def _allowed(self, state: ChoraleState) -> Tensor:
        s, orders = state.arrays(), self.arrangements
        # The next token's frame and voice; the header has index 0.
        index, header, sounding, end = (
            s["positions"][:, 0],
            s["header"],
            s["sounding"],
            s["end"],
        )
        frame, voice = index // NUM_VOICES, index % NUM_VOICES
        begun, plain = index >= 0, header == self.bos
        leads, delay = orders.leading[header, voice], orders.delay[header]
        first, last = voice == self._first[header], voice == self._last[header]
        limit = np.minimum(s["limit"], self.limit)
        over = frame >= end + delay
        must_wait = np.where(leads, frame >= end, frame < delay)
        sings = begun & ~over & ~must_wait & (~leads | (frame < limit))
        # The last frame that fits must have a note, or else the piece could not end there.
        last_chance = leads & (frame == limit - 1) & last
        stops = leads & first & (delay > 0) & sounding & (frame > 0)
        may_end = np.where(plain, (frame == 0) | sounding, over) & (voice == 0)
        mask = np.zeros((len(index), len(self.vocabulary)), bool)
        ahead = sings & leads & (delay > 0)
        may_sing = np.ones((len(index), len(self.pitches)), bool)
        if not self.may_be_parallel:
            may_sing = ~self._parallels(s["recent"], header, voice)
        mask[:, self.pitches.start : self.pitches.stop] = may_sing & (sings & ~ahead)[:, None]
        of_ahead = self.families["Ahead"]
        mask[:, of_ahead.start : of_ahead.stop] = (may_sing & ahead[:, None])[:, : len(of_ahead)]
        mask[:, self.silence] = sings & (~last_chance | sounding)
        mask[:, self.eos] = begun & may_end
        mask[:, self.bos] = ~begun
        headers = self.families["Lead"]
        mask[:, headers.start : headers.stop] = ~begun[:, None]
        if self.families["Empty"]:
            mask[:, self.families["Empty"].start] = begun & ~over & (must_wait | stops)
        return torch.from_numpy(mask)

    def _parallels(self, recent: IntArray, header: IntArray, voice: IntArray) -> BoolArray:
        """Return which pitches of the next token would make parallel fifths or octaves. [B, P].

        Two voices move together, and are a perfect fifth (an octave or unison) apart before and
        after, give or take octaves: as `metrics.part_writing` counts them. The other voice is one
        that is known already, in this frame or, leading, in one before.
        """
        rows, pitches = np.arange(len(voice)), np.arange(len(self.pitches))
        orders, mine = self.arrangements, recent[:, -NUM_VOICES]
        behind = ~orders.leading[header] * orders.delay[header][:, None]  # [B, 4]
        found = np.zeros((len(voice), len(pitches)), bool)
        for other in range(NUM_VOICES):
            back = NUM_VOICES * (behind[rows, voice] - behind[:, other]) + voice - other
            known = back > 0
            back = np.maximum(back, 1)
            now, before = recent[rows, -back], recent[rows, -back - NUM_VOICES]
            interval = np.abs(mine - before) % 12
            moves = known & (now != before) & (np.minimum(np.minimum(now, before), mine) >= 0)
            perfect = moves & ((interval == _UNISON) | (interval == _FIFTH))
            same = np.abs(pitches - now[:, None]) % 12 == interval[:, None]
            found |= perfect[:, None] & same & (pitches != mine[:, None])
        return found

    def _time_tokens(self, state: ChoraleState, until: Tensor) -> Tensor:
        """Return silence before `until`, and every token where the next one is at `until`."""
        tokens = torch.arange(len(self.vocabulary))
        arrives = state.positions[:, 0] // NUM_VOICES >= until
        return (tokens == self.silence) | arrives[:, None]

    def advance(self, state: ChoraleState, tokens: Tensor) -> ChoraleState:
        s, ids = state.arrays(), tokens.numpy()
        index = s["positions"][:, 0] + (ids != self.pad)
        header = np.where(self._is_header(ids), ids, s["header"])
        time = self.arrangements.times(header, index, ids == self.eos)
        leads, first, stops = self._roles(header, index, ids)
        is_pitch = self._is_pitch(ids)
        sounding = np.where(leads, is_pitch | (s["sounding"] & ~first), s["sounding"])
        end = np.minimum(s["end"], np.where(stops, (index - 1) // NUM_VOICES, NEVER))
        recent = np.concatenate([s["recent"][:, 1:], self._pitches(ids)[:, None]], axis=1)
        fields = {"sounding": sounding, "header": header, "end": end, "recent": recent}
        new = {name: torch.from_numpy(array) for name, array in fields.items()}
        return replace(state, **self._next_fields(state, tokens, torch.from_numpy(time)), **new)

    def _scan(self, state: ChoraleState, tokens: Tensor) -> ChoraleState:
        ids = tokens.numpy()
        index = cumulate(state.positions[:, 0], tokens != self.pad)
        header = latest(state.header, torch.from_numpy(self._is_header(ids)), tokens)
        own = header[:, 1:].numpy(), index[:, 1:].numpy()
        time = torch.cat(
            [
                state.time[:, None],
                torch.from_numpy(self.arrangements.times(*own, ids == self.eos)),
            ],
            dim=1,
        )
        leads, first, stops = map(torch.from_numpy, self._roles(*own, ids))
        is_pitch = torch.from_numpy(self._is_pitch(ids))
        ends = torch.where(stops, (index[:, 1:] - 1) // NUM_VOICES, NEVER)
        recent = torch.cat([state.recent, torch.from_numpy(self._pitches(ids))], dim=1)
        return ChoraleState(
            **self._scan_fields(state, tokens, time),
            recent=recent.unfold(1, _RECENT, 1),
            sounding=latest(state.sounding, leads & (is_pitch | first), is_pitch),
            header=header,
            end=torch.cat([state.end[:, None], ends], dim=1).cummin(dim=1).values,
        )

    def _pitches(self, ids: IntArray) -> IntArray:
        """Return pitches, counted from the lowest, of ids of the same shape; -1: none."""
        ahead = within(ids, self.families["Ahead"])
        pitch = ids - np.where(ahead, self.families["Ahead"].start, self.pitches.start)
        return np.where(self._is_pitch(ids), pitch, -1)

    def _is_pitch(self, ids: IntArray) -> Any:
        """Return which ids are pitches, as booleans of the same shape."""
        return within(ids, self.pitches) | within(ids, self.families["Ahead"])

    def _is_header(self, ids: IntArray) -> Any:
        """Return which ids are headers, as booleans of the same shape."""
        return (ids == self.bos) | within(ids, self.families["Lead"])

    def _roles(self, header: IntArray, index: IntArray, ids: IntArray) -> tuple[Any, Any, Any]:
        """Return which tokens are a leading voice's, its frame's first, and a leading empty one."""
        voice = (index - 1) % NUM_VOICES
        leads = self.arrangements.leading[header, voice] & (index > 0)
        return leads, voice == self._first[header], leads & within(ids, self.families["Empty"])
