"""Bounds on how many notes sound at once, and on how long they sound."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from musicgen.errors import ParameterError
from musicgen.generation.constraints.base import Constraint
from musicgen.tokenization.grammar import BoolArray, Grammar
from musicgen.tokenization.groove2groove.grammar import GrooveGrammar, GrooveState
from musicgen.tokenization.songs.grammar import SongsGrammar, SongsState
from musicgen.tokenization.vocabulary import IntArray


def notes_of_each(grammar: Grammar[Any], max_notes: int | Sequence[int]) -> IntArray:
    """Return how many notes of each instrument may sound at once. [num_instruments]

    Raises:
        ParameterError: there is not one number, or one for each instrument.
    """
    number = grammar.num_instruments
    each = [max_notes] * number if isinstance(max_notes, int) else [*max_notes]
    if len(each) != number:
        expected = f"expected one number, or {number}: one for each instrument"
        raise ParameterError("max_notes", each, expected)
    return np.array(each, np.int64)


class MaxNotes(Constraint):
    """An instrument has at most a number of notes at once; for tokens of Groove2Groove.

    Args:
        max_notes: for each instrument. [num_instruments]
    """

    def __init__(self, grammar: GrooveGrammar, max_notes: IntArray) -> None:
        self.max_notes = max_notes
        self._on = grammar.slices["NoteOn"]
        self._size = len(grammar.vocabulary)

    def allowed(self, state: GrooveState, memory: None) -> BoolArray:
        batch, num_voices = state.ends.shape
        sounding = (state.ends != 0).reshape(batch, len(self.max_notes), -1)  # [B, N, keys]
        has_room = sounding.sum(axis=2) < self.max_notes
        mask = np.ones((batch, self._size), bool)
        mask[:, self._on] = has_room.repeat(num_voices // len(self.max_notes), axis=1)
        return mask


class MaxNotesOfParts(Constraint):
    """A part has at most a number of notes at once; for tokens of songs.

    Parts and beats that would leave no room for a note do not begin.

    Args:
        max_notes: for each instrument. [num_instruments]
        targets: the parts that are written; the others have no bound. [B, num_parts]
    """

    def __init__(self, grammar: SongsGrammar, max_notes: IntArray, targets: BoolArray) -> None:
        self.grammar, self.max_notes = grammar, max_notes
        num_instruments = len(max_notes)
        self.bounded = targets[:, :num_instruments] & ~grammar.is_drum[:num_instruments]

    def start(self, state: SongsState, prompts: Any) -> BoolArray:
        return self.bounded

    def allowed(self, state: SongsState, memory: BoolArray) -> BoolArray:
        grammar = self.grammar
        batch, number = memory.shape
        ends = np.sort(state.ends.reshape(batch, len(grammar.is_drum), -1)[:, :number])
        instruments, num_pitches = np.arange(number), ends.shape[2]
        # When the longest of as many notes as may sound at once has ended: there is room again.
        room = ends[:, instruments, -np.minimum(self.max_notes, num_pitches)]
        free = np.zeros((batch, len(grammar.is_drum)), np.int64)  # [B, P]
        free[:, :number] = np.where(memory, room, 0)
        part = np.maximum(state.part, 0)[:, None]
        here = np.where(state.part[:, None] < 0, 0, np.take_along_axis(free, part, axis=1))
        mask = np.ones((batch, len(grammar.vocabulary)), bool)
        mask[:, grammar.slices["Pitch"]] = here <= state.time[:, None]
        mask[:, grammar.slices["Beat"]] = state.bar_start[:, None] + grammar.ranks["Beat"] >= here
        stop = np.minimum(state.bar_end, state.limit)
        mask[:, grammar.slices["Part"]] = free < stop[:, None]
        return mask


class LimitedDurations(Constraint):
    """No note of a track is longer than its longest in the prompt; for tokens of Groove2Groove.

    Args:
        longest: grid steps of the longest note of each track in the prompt, 0 without a note: such
            a track keeps its own bound. [B, num_tracks]
    """

    def __init__(self, grammar: GrooveGrammar, longest: IntArray) -> None:
        self.grammar, self.longest = grammar, longest

    def restrict(self, state: GrooveState) -> GrooveState:
        return self.grammar.shorten(state, self.longest)
