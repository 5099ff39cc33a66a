"""Constraints on tokens of bars: tempo, time signature, chords, the last chord."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from musicgen.midi.key import Key, final_key
from musicgen.tokenization.bar_grammar import BarGrammar, BarState
from musicgen.tokenization.constraints import ROOT, TRIAD, Constraint, tonic_pitches
from musicgen.tokenization.grammar import NEVER, BoolArray, padded
from musicgen.tokenization.vocabulary import IntArray

BASS = 48
"""Pitches below C3 are the tonic: it is the lowest note of 96 of 100 last chords of songs."""


class FixedTempo(Constraint):
    """The tempo stays. A piece without notes may still take its first tempo."""

    def __init__(self, grammar: BarGrammar[Any]) -> None:
        self._others = ~grammar.of_families("Tempo")  # [V]

    def _is_fixed(self, state: BarState) -> BoolArray:
        fixed = state.tempo >= 0
        return fixed if fixed.all() else fixed | state.has_note

    def earliest(self, state: BarState, memory: IntArray) -> dict[str, IntArray]:
        return {"Tempo": np.where(self._is_fixed(state), NEVER, 0)}

    def allowed(self, state: BarState, memory: IntArray) -> BoolArray:
        return ~self._is_fixed(state)[:, None] | self._others


class FixedTimeSignature(Constraint):
    """The time signature stays. A piece without bars may still take its first one."""

    def __init__(self, grammar: BarGrammar[Any]) -> None:
        bars = grammar.slices["Bar"]
        others = ~grammar.of_families("Bar")
        signatures = np.arange(bars.stop - bars.start)
        # The tokens after each time signature, and at last without one. [N + 1, V]
        self._after = np.repeat(others[None], len(signatures) + 1, axis=0)
        self._after[signatures, bars.start + signatures] = True
        self._after[-1] = True

    def allowed(self, state: BarState, memory: IntArray) -> BoolArray:
        return self._after[state.time_signature]


class Chords(Constraint):
    """The chords of a progression come at their times, and no others.

    Without a progression the model chooses the chords, but a prompt with notes and without chords
    is continued without chords.

    The memory is the number of the prompt, and whether the model chooses the chords. [B, 2]

    Args:
        progressions: grid step and index of each chord, by sequence; empty: no progression. [N, 2]
        always_chooses: the model also chooses after prompts without chords.
    """

    def __init__(
        self, grammar: Any, progressions: Sequence[IntArray], *, always_chooses: bool = False
    ) -> None:
        self.grammar, self.always_chooses = grammar, always_chooses
        self.has_progression = np.array([len(each) > 0 for each in progressions])
        # First grid step and index of each chord, and at last NEVER. [B, N]
        self.starts, self.indices = np.moveaxis(padded(progressions, NEVER), 2, 0)
        self._is_chord = grammar.of_families("Chord")

    def start(self, state: BarState, prompts: Sequence[IntArray]) -> IntArray:
        has_note = state.has_note | (state.pitch >= 0)
        chooses = (state.chord >= 0) | ~has_note | self.always_chooses
        return np.stack([np.arange(len(prompts)), chooses & ~self.has_progression], axis=1)

    def _next_chord(
        self, state: BarState, memory: IntArray, time: IntArray
    ) -> tuple[IntArray, IntArray]:
        """Return when the progression changes the chord next from a time [B] on, and to which.

        Returns:
            Grid steps, NEVER without a change, and indices in `CHORDS`. [B, 1] each
        """
        starts, indices = self.starts[memory[:, 0]], self.indices[memory[:, 0]]
        differs = np.ones(starts.shape, bool)  # the end of a progression does
        is_ahead = starts[:, 1:] > time[:, None]  # or in force: until the next chord begins
        differs[:, :-1] = is_ahead & (indices[:, :-1] != state.chord[:, None])
        at = differs.argmax(axis=1)[:, None]
        due = np.maximum(np.take_along_axis(starts, at, 1), time[:, None])
        return due, np.take_along_axis(indices, at, 1)

    def _mask(
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

    def earliest(self, state: BarState, memory: IntArray) -> dict[str, IntArray]:
        chooses = memory[:, 1:] > 0
        if chooses.all():
            return {}
        due, _ = self._next_chord(state, memory, state.time)
        return {"Chord": np.where(chooses, 0, due)[:, 0]}

    def allowed(self, state: BarState, memory: IntArray) -> BoolArray | None:
        grammar, chooses = self.grammar, memory[:, 1:] > 0
        if chooses.all():
            return None
        due, asked = self._next_chord(state, memory, state.time)
        mask = self._mask(state, chooses, due, asked)
        mask[:, grammar.slices["Beat"]] = state.bar_start[:, None] + grammar.ranks["Beat"] <= due
        is_at_beat = grammar.family[state.last] == grammar.numbers["Beat"]
        must_come = is_at_beat[:, None] & (due == state.time[:, None])
        return mask & (~must_come | self._is_chord)


class LastChordOfBars(Constraint):
    """The last bar comes to rest on a chord: all notes that sound belong to it, and one begins.

    Earlier notes outside the chord end when it begins, and no note begins in the second half of the
    bar. The probability of such notes is added to that of the next part and of the end, as in
    `EndBy`.

    Args:
        start: grid step at which the last bar begins. [B]
        chord: the pitches of the vocabulary that belong to the chord. [B, num_pitches]
    """

    def __init__(self, grammar: BarGrammar[Any], start: IntArray, chord: BoolArray) -> None:
        self.grammar, self.first, self.chord = grammar, start, chord
        self._may_be_last = grammar.of_families("Duration", "Drum")
        self._lengths = grammar.durations / grammar.unit  # in grid steps
        self._is_beat = grammar.of_families("Beat")
        self._ends_part = grammar.of_families("Part", "EOS")

    def allowed(self, state: BarState, memory: IntArray) -> BoolArray:
        start, chord, slices = self.first[memory, None], self.chord[memory], self.grammar.slices
        is_last = state.time[:, None] >= start
        mask = np.ones((len(memory), len(self.grammar.vocabulary)), bool)
        mask[:, slices["Pitch"]] = chord | ~is_last
        mask[:, slices["EOS"]] = self._may_be_last[state.last][:, None] | ~is_last
        pitch = np.clip(state.pitch, 0, chord.shape[1] - 1)
        in_chord = np.take_along_axis(chord, pitch[:, None], axis=1)
        ends = state.time[:, None] + self._lengths
        mask[:, slices["Duration"]] = in_chord | (ends <= start) | is_last
        half = (state.bar_end - state.bar_start)[:, None] / 2
        mask[:, slices["Beat"]] = (self.grammar.ranks["Beat"] <= half) | ~is_last
        return mask

    def redirect(self, state: BarState, logits: Tensor, allowed: Tensor) -> Tensor:
        is_last = state.bar_end >= state.limit
        if not is_last.any():
            return logits
        is_late = self._is_beat & self.grammar.allowed(state).numpy() & is_last[:, None]
        is_late = torch.from_numpy(is_late) & ~allowed
        ends = allowed & torch.from_numpy(self._ends_part)
        late, end = (logits.masked_fill(~x, -torch.inf).logsumexp(1) for x in (is_late, ends))
        more = torch.where(end.isfinite(), torch.logaddexp(end, late) - end, 0.0)
        return torch.where(ends, logits + more[:, None], logits)


def bar_constraints(
    grammar: BarGrammar[Any],
    request: Any,
    prompts: Sequence[Any],
    pitches: range,
    own: Sequence[Constraint],
) -> list[Constraint]:
    """Return the constraints of a request on tokens of bars.

    Args:
        request, prompts: see `Tokenizer.constraints`.
        pitches: the MIDI pitches of the vocabulary.
        own: the tokenizer's own ones.
    """
    constraints = [*own]
    if request.ends_on_tonic:
        starts = [request.end_time(prompt) - prompt.bar_length for prompt in prompts]
        chord = last_pitches([final_key(prompt.score) for prompt in prompts], pitches)
        constraints.insert(0, LastChordOfBars(grammar, np.array(starts), chord))
    if request.decoding.fix_tempo:
        constraints.append(FixedTempo(grammar))
    if request.decoding.fix_time_signature and not request.piece.is_whole_piece:
        constraints.append(FixedTimeSignature(grammar))
    return constraints


def last_pitches(keys: Sequence[Key | None], pitches: range) -> BoolArray:
    """Return which MIDI pitches may be in the last chord, [B, num_pitches], see `tonic_pitches`."""
    roots, triads = (tonic_pitches(keys, pitches, each) for each in (ROOT, TRIAD))
    return np.where(np.array(pitches) < BASS, roots, triads)
