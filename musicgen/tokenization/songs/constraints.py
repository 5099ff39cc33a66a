"""Constraints on the tokens of songs: kept parts, chords in their part, notes at once."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from musicgen.midi.key import final_key
from musicgen.tokenization.bar_constraints import Chords
from musicgen.tokenization.chords.symbols import ROOTS, chord_index
from musicgen.tokenization.constraints import Constraint
from musicgen.tokenization.grammar import NEVER, BoolArray, padded
from musicgen.tokenization.part_order import FREE
from musicgen.tokenization.songs.grammar import SongsGrammar, SongsState
from musicgen.tokenization.vocabulary import IntArray


class KeptSongParts(Constraint):
    """Some parts of a song are kept; after them in each bar the others are written.

    In place of each FREE any number of tokens of the target parts, and of chords, may come. The
    token after FREE, which begins the next bar, ends them. If the next bar has another time
    signature, its token also gets the probability of a bar in the present time signature. A mask
    alone would share that among the notes, and they would pile up.

    The memory is the number of the prompt, and the index of the conditioning token to come, or of
    the FREE in its place. [B, 2]

    Args:
        conditioning: ids of each sequence, FREE where the model writes. [L]
        targets: the parts that are written. [B, num_parts]
    """

    def __init__(
        self, grammar: SongsGrammar, conditioning: Sequence[IntArray], targets: BoolArray
    ) -> None:
        self.grammar, self.targets = grammar, targets
        self.conditioning = padded(conditioning, FREE)
        self._tokens = np.arange(len(grammar.vocabulary))
        self._in_part = ~grammar.of_families("Bar", "Key", "Tempo", "Part", "EOS")  # [V]
        self._is_bar = torch.from_numpy(grammar.of_families("Bar"))  # [V]

    def start(self, state: SongsState, prompts: Sequence[IntArray]) -> IntArray:
        return np.stack([np.arange(len(prompts)), state.positions[:, 0] + 1], axis=1)

    def _next_tokens(self, memory: IntArray) -> tuple[IntArray, IntArray]:
        """Return the next two conditioning tokens, FREE at the end. [B, 1] each"""
        prompt, at = memory[:, :1], memory[:, 1:] + np.arange(2)
        tokens = self.conditioning[prompt, np.minimum(at, self.conditioning.shape[1] - 1)]
        return tokens[:, :1], tokens[:, 1:]

    def advance(self, state: SongsState, memory: IntArray, tokens: IntArray) -> IntArray:
        now, after = self._next_tokens(memory)
        ends_free = (now == FREE) & (tokens[:, None] == after)
        moved = memory.copy()
        moved[:, 1:] += np.where(now != FREE, 1, 2 * ends_free)
        return moved

    def allowed(self, state: SongsState, memory: IntArray) -> BoolArray:
        now, after = self._next_tokens(memory)
        if (now != FREE).all():
            return self._tokens == now
        targets = self.targets[memory[:, 0]]
        free = (after == FREE) | (self._tokens == after)  # [B, V]
        part = np.maximum(state.part, 0)[:, None]
        free |= np.take_along_axis(targets, part, axis=1) & self._in_part
        parts = self.grammar.slices["Part"]
        # Kept parts come before target parts.
        free[:, parts] |= targets
        free[:, parts] &= self.grammar.may_follow(state.part, leading=~targets)
        return np.where(now == FREE, free, self._tokens == now)

    def redirect(self, state: SongsState, logits: Tensor, allowed: Tensor) -> Tensor:
        first = self.grammar.slices["Bar"].start
        same = torch.from_numpy(first + np.maximum(state.time_signature, 0))[:, None]
        next_bar = allowed & self._is_bar
        is_other = next_bar.any(dim=1, keepdim=True) & ~next_bar.gather(1, same)
        if not is_other.any():
            return logits
        together = torch.logaddexp(logits, logits.gather(1, same))
        return torch.where(next_bar & is_other, together, logits)


class SongsChords(Chords):
    """Chords in a part of their own, see `Chords`.

    Args:
        targets: the parts that are written, which come after the chords. [B, num_parts]
    """

    def __init__(
        self,
        grammar: SongsGrammar,
        progressions: Sequence[IntArray],
        targets: BoolArray,
        *,
        always_chooses: bool = False,
    ) -> None:
        super().__init__(grammar, progressions, always_chooses=always_chooses)
        self.targets = targets
        # Tokens after which a part, a bar or the piece may end. [V]
        ends = grammar.of_families("Part", "Bar", "EOS")
        self._may_end_part = np.any(grammar.follows & ends, axis=1)

    def allowed(self, state: SongsState, memory: IntArray) -> BoolArray | None:
        grammar: SongsGrammar = self.grammar
        in_chords = grammar.is_chords[state.part] & (state.part >= 0)
        if not (self._may_end_part[state.last] | in_chords).any():
            return None  # within the notes of other parts no chord matters
        prompt, bar_end = memory[:, 0], state.bar_end[:, None]
        first = self.starts[prompt, :1]  # in the bars before it the model chooses
        chooses = (memory[:, 1:] > 0) | (bar_end <= first) & (first < NEVER)
        if chooses.all():
            return None
        # After the part of chords, all chords of the bar have come.
        time = np.where(state.has_chords, state.bar_end - 1, state.bar_start)
        time = np.where(in_chords, state.time, time)
        due, asked = self._next_chord(state, memory, time)
        mask = self._mask(state, chooses, due, asked)
        beats = state.bar_start[:, None] + grammar.ranks["Beat"]
        mask[:, grammar.slices["Beat"]] = ~in_chords[:, None] | chooses | (beats == due)
        complete = due >= np.minimum(state.bar_end, state.limit)[:, None]
        others = complete | ~self.targets[prompt]
        mask[:, grammar.slices["Part"]] = np.where(grammar.is_chords, chooses | ~complete, others)
        return mask


class MaxNotesOfParts(Constraint):
    """A part has at most a number of notes at once.

    Parts and beats that would leave no room for a note do not begin.

    Args:
        max_notes: per instrument. [num_instruments]
        targets: the parts that are written; the others have no bound. [B, num_parts]
    """

    def __init__(self, grammar: SongsGrammar, max_notes: IntArray, targets: BoolArray) -> None:
        self.grammar, self.max_notes = grammar, max_notes
        num_instruments = len(max_notes)
        self.bounded = targets[:, :num_instruments] & ~grammar.is_drum[:num_instruments]

    def allowed(self, state: SongsState, memory: IntArray) -> BoolArray:
        grammar, bounded = self.grammar, self.bounded[memory]
        batch, number = bounded.shape
        ends = np.sort(state.ends.reshape(batch, len(grammar.is_drum), -1)[:, :number])
        instruments, num_pitches = np.arange(number), ends.shape[2]
        # When the longest of as many notes as may sound at once has ended: there is room again.
        room = ends[:, instruments, -np.minimum(self.max_notes, num_pitches)]
        free = np.zeros((batch, len(grammar.is_drum)), np.int64)  # [B, P]
        free[:, :number] = np.where(bounded, room, 0)
        part = np.maximum(state.part, 0)[:, None]
        here = np.where(state.part[:, None] < 0, 0, np.take_along_axis(free, part, axis=1))
        mask = np.ones((batch, len(grammar.vocabulary)), bool)
        mask[:, grammar.slices["Pitch"]] = here <= state.time[:, None]
        mask[:, grammar.slices["Beat"]] = state.bar_start[:, None] + grammar.ranks["Beat"] >= here
        stop = np.minimum(state.bar_end, state.limit)
        mask[:, grammar.slices["Part"]] = free < stop[:, None]
        return mask


def tonic_chord(prompt: Any, end: int) -> IntArray:
    """Return grid step and index in `CHORDS` of the tonic chord in the last bar, if any. [N, 2]

    Args:
        prompt: a `Prompt`, which tells the key.
        end: grid step at which the bar ends.
    """
    key = final_key(prompt.score)
    if key is None:
        return np.empty((0, 2), np.int64)
    chord = chord_index(f"{ROOTS[key.tonic]}_{'M' if key.major else 'm'}")
    return np.array([[end - prompt.bar_length, chord]])
