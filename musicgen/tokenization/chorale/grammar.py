"""The grammar of Chorale as batched masks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from musicgen.tokenization.chorale.frames import NUM_VOICES
from musicgen.tokenization.grammar import Grammar, GrammarState, cumulate, latest
from musicgen.tokenization.vocabulary import Vocabulary


@dataclass
class ChoraleState(GrammarState):
    """The state of Chorale sequences."""

    sounding: Tensor  # whether a voice sounds in the current frame [B]


class ChoraleGrammar(Grammar[ChoraleState]):
    """BOS, frames of four voices, and EOS after a frame in which a voice sounds, or after BOS.

    Args:
        limit: maximum number of frames.
    """

    def __init__(self, vocabulary: Vocabulary, families: Mapping[str, range], limit: int) -> None:
        super().__init__(vocabulary)
        self.bos = vocabulary.id("BOS")
        self.silence = vocabulary.id("Silence")
        self.pitches = self.note_ons = families["Pitch"]
        self.limit = limit

    def tables(self) -> dict[str, Any]:
        """Return the voices of a frame, and how many frames a piece may have."""
        return {"voices": NUM_VOICES, "max_frames": self.limit}

    def _initial_state(self, num_rows: int) -> ChoraleState:
        sounding = torch.zeros(num_rows, dtype=torch.bool)
        return ChoraleState(**self._initial_fields(num_rows), sounding=sounding)

    def _allowed(self, state: ChoraleState) -> Tensor:
        tokens = torch.arange(len(self.vocabulary))
        # The next token's frame and voice; BOS has index 0.
        index = state.positions[:, :1]
        frame, voice = index // NUM_VOICES, index % NUM_VOICES
        begun = index >= 0
        limit = state.limit[:, None].clamp(max=self.limit)
        sings = begun & (frame < limit)
        # The last frame that fits must have a note, or else the piece could not end there.
        last_chance = (frame == limit - 1) & (voice == NUM_VOICES - 1)
        may_rest = sings & (~last_chance | state.sounding[:, None])
        may_end = begun & (voice == 0) & ((frame == 0) | state.sounding[:, None])
        return (
            (self._is_pitch(tokens) & sings)
            | ((tokens == self.silence) & may_rest)
            | ((tokens == self.eos) & may_end)
            | ((tokens == self.bos) & ~begun)
        )

    def _time_tokens(self, state: ChoraleState, until: Tensor) -> Tensor:
        """Return silence before `until`, and every token where the next one is at `until`."""
        tokens = torch.arange(len(self.vocabulary))
        arrives = state.positions[:, 0] // NUM_VOICES >= until
        return (tokens == self.silence) | arrives[:, None]

    def advance(self, state: ChoraleState, tokens: Tensor) -> ChoraleState:
        index = state.positions[:, 0] + (tokens != self.pad)
        time = (index - 1).clamp(min=0) // NUM_VOICES
        same_frame = index % NUM_VOICES != 1
        sounding = self._is_pitch(tokens) | (state.sounding & same_frame)
        return replace(state, **self._next_fields(state, tokens, time), sounding=sounding)

    def _scan(self, state: ChoraleState, tokens: Tensor) -> ChoraleState:
        index = cumulate(state.positions[:, 0], tokens != self.pad)
        time = (index - 1).clamp(min=0) // NUM_VOICES
        time[:, 0] = state.time
        is_pitch, new_frame = self._is_pitch(tokens), index[:, 1:] % NUM_VOICES == 1
        sounding = latest(state.sounding, is_pitch | new_frame, is_pitch)
        return ChoraleState(**self._scan_fields(state, tokens, time), sounding=sounding)

    def _is_pitch(self, tokens: Tensor) -> Tensor:
        return (tokens >= self.pitches.start) & (tokens < self.pitches.stop)
