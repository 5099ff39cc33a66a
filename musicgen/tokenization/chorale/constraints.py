"""Constraints on the tokens of chorales: kept voices, parallels, the last chord."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from musicgen.metrics.part_writing import FIFTH, SILENT, UNISON, parallel_intervals
from musicgen.tokenization.chorale.frames import NUM_VOICES
from musicgen.tokenization.chorale.grammar import LEAD, ChoraleGrammar, ChoraleState
from musicgen.tokenization.constraints import Constraint
from musicgen.tokenization.grammar import BoolArray, Grammar, GrammarState, padded
from musicgen.tokenization.part_order import FREE
from musicgen.tokenization.vocabulary import IntArray

RECENT = NUM_VOICES * (LEAD + 2)  # tokens from which parallels are seen


class KeptTokens(Constraint):
    """The tokens are those of a piece, except where the model writes.

    Args:
        conditioning: ids of each sequence by index, FREE where the model writes; later tokens are
            free. [L]
    """

    def __init__(self, grammar: Grammar[Any], conditioning: Sequence[IntArray]) -> None:
        self.conditioning = padded(conditioning, FREE)
        self._tokens = np.arange(len(grammar.vocabulary))

    def allowed(self, state: GrammarState, memory: IntArray) -> BoolArray:
        at = np.minimum(state.positions[:, 0] + 1, self.conditioning.shape[1] - 1)
        token = self.conditioning[memory, at][:, None]
        return (token == FREE) | (self._tokens == token)


class NoParallels(Constraint):
    """No two voices move in parallel fifths or octaves.

    They are those that `metrics.part_writing` counts. The other voice is one that is known already,
    in this frame or, if it leads, in an earlier one.

    The memory is the pitch of each of the last tokens, from the lowest; `SILENT` without one.
    [B, RECENT]
    """

    def __init__(self, grammar: ChoraleGrammar) -> None:
        self.grammar = grammar

    def start(self, state: ChoraleState, prompts: Sequence[IntArray]) -> IntArray:
        recent = np.full((len(prompts), RECENT), SILENT)
        for of_prompt, tokens in zip(recent, prompts, strict=True):
            pitches = self.grammar.pitch[np.asarray(tokens)[-RECENT:]]
            of_prompt[RECENT - len(pitches) :] = pitches
        return recent

    def advance(self, state: ChoraleState, memory: IntArray, tokens: IntArray) -> IntArray:
        return np.concatenate([memory[:, 1:], self.grammar.pitch[tokens][:, None]], axis=1)

    def allowed(self, state: ChoraleState, memory: IntArray) -> BoolArray:
        may_sing = ~self._parallels(state, memory)
        mask = np.ones((len(may_sing), len(self.grammar.vocabulary)), bool)
        mask[:, self.grammar.slices["Pitch"]] = may_sing
        ahead = self.grammar.slices["Ahead"]
        mask[:, ahead] = may_sing[:, : ahead.stop - ahead.start]
        return mask

    def _parallels(self, state: ChoraleState, recent: IntArray) -> BoolArray:
        """Return which pitches of the next token would make a parallel. [B, num_pitches]"""
        arrangements = self.grammar.arrangements
        voice = state.positions[:, 0] % NUM_VOICES  # of the next token: the header has index 0
        pitches = np.arange(self.grammar.num_pitches)
        sequences, mine = np.arange(len(voice)), recent[:, -NUM_VOICES]
        delay = arrangements.delay[state.header][:, None]
        behind = ~arrangements.leading[state.header] * delay  # frames, of each voice [B, 4]
        found = np.zeros((len(voice), len(pitches)), bool)
        for other in range(NUM_VOICES):
            frames = behind[sequences, voice] - behind[:, other]
            back = NUM_VOICES * frames + voice - other  # tokens from the other voice to this one
            is_known = back > 0
            back = np.maximum(back, 1)
            now, before = recent[sequences, -back], recent[sequences, -back - NUM_VOICES]
            pairs_before = np.stack((mine, before), axis=-1)[:, None]  # [B, 1, 2]
            pairs_now = np.stack(np.broadcast_arrays(pitches, now[:, None]), axis=-1)
            intervals = parallel_intervals(pairs_before, pairs_now)  # [B, num_pitches]
            found |= is_known[:, None] & np.isin(intervals, (UNISON, FIFTH))
        return found


class LastChordOfChorale(Constraint):
    """From a frame on all voices sing, on the pitches of a chord.

    Args:
        start: the frame. [B]
        chord: the pitches of the vocabulary per voice. [B, num_voices, num_pitches]
    """

    def __init__(self, grammar: ChoraleGrammar, start: IntArray, chord: BoolArray) -> None:
        self.grammar, self.first, self.chord = grammar, start, chord

    def allowed(self, state: ChoraleState, memory: IntArray) -> BoolArray:
        # Frame and voice of the next token: the header has index 0.
        frame, voice = np.divmod(state.positions[:, 0], NUM_VOICES)
        is_last = (frame >= self.first[memory])[:, None]
        mask = np.ones((len(memory), len(self.grammar.vocabulary)), bool)
        mask[:, self.grammar.slices["Pitch"]] = self.chord[memory, voice] | ~is_last
        mask[:, self.grammar.slices["Silence"]] = ~is_last
        return mask
