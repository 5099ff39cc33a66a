"""The chords of a request: a progression, those that the model chooses, or none."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from musicgen.generation.constraints.base import Constraint
from musicgen.tokenization.bar_grammar import BarState
from musicgen.tokenization.grammar import NEVER, BoolArray, padded
from musicgen.tokenization.songs.grammar import SongsGrammar, SongsState
from musicgen.tokenization.vocabulary import IntArray


class ChordsMemory(NamedTuple):
    """What is known of the chords of each sequence."""

    chooses: BoolArray  # whether the model chooses them [B, 1]
    starts: IntArray  # first grid step of each chord of the progression, and at last NEVER [B, N]
    indices: IntArray  # of these chords in `CHORDS`, and at last NEVER [B, N]
    targets: BoolArray  # the parts that are written, which come after the chords [B, num_parts]


class Chords(Constraint):
    """The chords of a progression come at their times, and no others.

    Without a progression the model chooses the chords, except after a prompt that has notes and no
    chords: there are none.

    Args:
        progressions: grid step and index of each chord, by sequence; empty: none. [N, 2]
        targets: the parts that are written, which come after the chords; None: tokens without
            parts. [B, num_parts]
        always_chooses: the model also chooses after prompts without chords.
    """

    def __init__(
        self,
        grammar: Any,
        progressions: Sequence[IntArray],
        targets: BoolArray | None = None,
        *,
        always_chooses: bool = False,
    ) -> None:
        self.grammar, self.always_chooses = grammar, always_chooses
        self.targets = np.ones((len(progressions), 0), bool) if targets is None else targets
        self.has_progression = np.array([len(each) > 0 for each in progressions])
        self.progressions = padded(progressions, NEVER)  # [B, N, 2]
        self._is_chord = grammar.of_families("Chord")

    def start(self, state: BarState, prompts: Any) -> ChordsMemory:
        has_note = state.has_note | (state.pitch >= 0)
        chooses = (state.chord >= 0) | ~has_note | self.always_chooses
        chooses &= ~self.has_progression
        starts, indices = self.progressions[..., 0], self.progressions[..., 1]
        return ChordsMemory(chooses[:, None], starts, indices, self.targets)

    def _chooses(self, state: Any, memory: ChordsMemory) -> BoolArray:
        """Return whether the model chooses the chords now. [B, 1]"""
        return memory.chooses

    def _next_chord(
        self, state: BarState, memory: ChordsMemory, time: IntArray
    ) -> tuple[IntArray, IntArray]:
        """Return when the progression changes the chord next from a time [B] on, and to which.

        Returns:
            Grid steps, NEVER without a change, and indices in `CHORDS`. [B, 1] each
        """
        starts, indices = memory.starts, memory.indices
        differs = np.ones(starts.shape, bool)  # the end of a progression does
        is_ahead = starts[:, 1:] > time[:, None]  # or in force: until the next chord begins
        differs[:, :-1] = is_ahead & (indices[:, :-1] != state.chord[:, None])
        at = differs.argmax(axis=1)[:, None]
        due = np.maximum(np.take_along_axis(starts, at, 1), time[:, None])
        return due, np.take_along_axis(indices, at, 1)

    def allowed(self, state: Any, memory: ChordsMemory) -> BoolArray | None:
        chooses = self._chooses(state, memory)
        return None if chooses.all() else self._mask(state, memory, chooses)

    @abstractmethod
    def _mask(self, state: Any, memory: ChordsMemory, chooses: BoolArray) -> BoolArray:
        """Return `allowed` where the model does not choose the chords of some sequences."""

    def _basic_mask(
        self, state: BarState, chooses: BoolArray, due: IntArray, asked: IntArray
    ) -> BoolArray:
        """Return a mask that has the chord that is due, and no end of a bar before it. [B, V]"""
        grammar = self.grammar
        mask = np.ones((len(due), len(grammar.vocabulary)), bool)
        is_due = (grammar.ranks["Chord"] == asked) & (due == state.time[:, None])
        mask[:, grammar.slices["Chord"]] = chooses | is_due
        complete = due >= np.minimum(state.bar_end, state.limit)[:, None]
        mask[:, grammar.slices["Bar"]] = complete
        mask[:, grammar.slices["EOS"]] = complete
        return mask


class REMIChords(Chords):
    """Chords among the notes of a bar, for tokens of REMI."""

    def earliest(self, state: BarState, memory: ChordsMemory) -> dict[str, IntArray]:
        chooses = self._chooses(state, memory)
        if chooses.all():
            return {}
        due, _ = self._next_chord(state, memory, state.time)
        return {"Chord": np.where(chooses, 0, due)[:, 0]}

    def _mask(self, state: BarState, memory: ChordsMemory, chooses: BoolArray) -> BoolArray:
        grammar, time = self.grammar, state.time[:, None]
        due, asked = self._next_chord(state, memory, state.time)
        mask = self._basic_mask(state, chooses, due, asked)
        mask[:, grammar.slices["Beat"]] = state.bar_start[:, None] + grammar.ranks["Beat"] <= due
        is_at_beat = grammar.family[state.last] == grammar.numbers["Beat"]
        must_come = is_at_beat[:, None] & (due == time)
        return mask & (~must_come | self._is_chord)


class SongsChords(Chords):
    """Chords in a part of their own, for tokens of songs."""

    def __init__(
        self,
        grammar: SongsGrammar,
        progressions: Sequence[IntArray],
        targets: BoolArray,
        *,
        always_chooses: bool = False,
    ) -> None:
        super().__init__(grammar, progressions, targets, always_chooses=always_chooses)
        # Tokens after which a part, a bar or the piece may end. [V]
        ends = grammar.of_families("Part", "Bar", "EOS")
        self._may_end_part = np.any(grammar.follows & ends, axis=1)

    def allowed(self, state: SongsState, memory: ChordsMemory) -> BoolArray | None:
        may_end_part = self._may_end_part[state.last]
        if not (may_end_part | self._in_chords(state)).any():
            return None  # within the notes of other parts no chord matters
        return super().allowed(state, memory)

    def _in_chords(self, state: SongsState) -> BoolArray:
        """Return whether the current part is that of chords. [B]"""
        return self.grammar.is_chords[state.part] & (state.part >= 0)

    def _chooses(self, state: SongsState, memory: ChordsMemory) -> BoolArray:
        due = memory.starts[:, :1]  # in the bars before it the model chooses
        return memory.chooses | (state.bar_end[:, None] <= due) & (due < NEVER)

    def _mask(self, state: SongsState, memory: ChordsMemory, chooses: BoolArray) -> BoolArray:
        grammar: SongsGrammar = self.grammar
        in_chords = self._in_chords(state)
        # After the part of chords, all chords of the bar have come.
        time = np.where(state.has_chords, state.bar_end - 1, state.bar_start)
        time = np.where(in_chords, state.time, time)
        due, asked = self._next_chord(state, memory, time)
        mask = self._basic_mask(state, chooses, due, asked)
        beats = state.bar_start[:, None] + grammar.ranks["Beat"]
        mask[:, grammar.slices["Beat"]] = ~in_chords[:, None] | chooses | (beats == due)
        complete = due >= np.minimum(state.bar_end, state.limit)[:, None]
        parts = grammar.slices["Part"]
        others = complete | ~memory.targets
        mask[:, parts] = np.where(grammar.is_chords, chooses | ~complete, others)
        return mask
