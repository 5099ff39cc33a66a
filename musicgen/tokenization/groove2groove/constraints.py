"""Constraints on the tokens of bands: notes at once, and how long they sound."""

import numpy as np

from musicgen.tokenization.constraints import Constraint
from musicgen.tokenization.grammar import BoolArray
from musicgen.tokenization.groove2groove.grammar import GrooveGrammar, GrooveState
from musicgen.tokenization.vocabulary import IntArray


class MaxNotes(Constraint):
    """An instrument has at most a number of notes at once.

    Args:
        max_notes: per instrument. [num_instruments]
    """

    def __init__(self, grammar: GrooveGrammar, max_notes: IntArray) -> None:
        self.max_notes, self._on = max_notes, grammar.slices["NoteOn"]
        self._size = len(grammar.vocabulary)

    def allowed(self, state: GrooveState, memory: IntArray) -> BoolArray:
        batch, num_voices = state.ends.shape
        sounding = (state.ends != 0).reshape(batch, len(self.max_notes), -1)  # [B, N, keys]
        has_room = sounding.sum(axis=2) < self.max_notes
        mask = np.ones((batch, self._size), bool)
        mask[:, self._on] = has_room.repeat(num_voices // len(self.max_notes), axis=1)
        return mask


class LimitedDurations(Constraint):
    """No note of a track is longer than its longest in the prompt.

    Args:
        longest: grid steps of the longest note of each track in the prompt; a track of 0, without a
            note, keeps its own bound. [B, num_tracks]
    """

    def __init__(self, grammar: GrooveGrammar, longest: IntArray) -> None:
        self.grammar, self.longest = grammar, longest

    def restrict(self, state: GrooveState) -> GrooveState:
        return self.grammar.shorten(state, self.longest)
