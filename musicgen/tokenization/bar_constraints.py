"""Constraints on tokens of bars: chords, kept parts, planned ends, the last chord."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from musicgen.tokenization.bar_grammar import BarGrammar, BarState, SongsGrammar
from musicgen.tokenization.bar_headers import FixedTempo, FixedTimeSignature, to_bar_line
from musicgen.tokenization.bars import InBars
from musicgen.tokenization.closing import (
    BASS,
    BY_STEP,
    MIDDLE,
    LastChordInRange,
    LastChordOfBars,
    TuneByStep,
    last_pitches,
    last_tonic,
    top_line,
)
from musicgen.tokenization.constraints import FREE, Constraint, padded, tonic_pitches
from musicgen.tokenization.grammar import NEVER, BoolArray
from musicgen.tokenization.phrases import LEFT_COUNTS, LEFT_ENDS, PIECE
from musicgen.tokenization.vocabulary import IntArray


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


class KeptSongParts(Constraint):
    """Some parts of a song are kept; after them in each bar the others are written.

    In place of each FREE any number of tokens of the target parts, and of chords, may come. The
    token after FREE, which begins the next bar, ends them; see `to_bar_line`.

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
        self._in_part = ~grammar.of_families("Bar", "Left", "Key", "Tempo", "Part", "EOS")  # [V]

    def start(self, state: BarState, prompts: Sequence[IntArray]) -> IntArray:
        return np.stack([np.arange(len(prompts)), state.positions[:, 0] + 1], axis=1)

    def _next_tokens(self, memory: IntArray) -> tuple[IntArray, IntArray]:
        """Return the next two conditioning tokens, FREE at the end. [B, 1] each"""
        prompt, at = memory[:, :1], memory[:, 1:] + np.arange(2)
        tokens = self.conditioning[prompt, np.minimum(at, self.conditioning.shape[1] - 1)]
        return tokens[:, :1], tokens[:, 1:]

    def advance(self, state: BarState, memory: IntArray, tokens: IntArray) -> IntArray:
        now, after = self._next_tokens(memory)
        ends_free = (now == FREE) & (tokens[:, None] == after)
        moved = memory.copy()
        moved[:, 1:] += np.where(now != FREE, 1, 2 * ends_free)
        return moved

    def allowed(self, state: BarState, memory: IntArray) -> BoolArray:
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

    def redirect(self, state: BarState, logits: Tensor, allowed: Tensor) -> Tensor:
        return to_bar_line(self.grammar, state, logits, allowed)


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

    def allowed(self, state: BarState, memory: IntArray) -> BoolArray | None:
        grammar: SongsGrammar = self.grammar
        if memory[:, 1].all():
            return None  # the model chooses
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
        # Before a progression that begins within the bar, the model chooses, too.
        is_early = (in_chords & (state.time < first[:, 0]) & (first[:, 0] < NEVER))[:, None]
        mask[:, grammar.slices["Beat"]] |= is_early & (beats < first)
        mask[:, grammar.slices["Chord"]] |= is_early
        complete = due >= np.minimum(state.bar_end, state.limit)[:, None]
        others = complete | ~self.targets[prompt]
        mask[:, grammar.slices["Part"]] = np.where(grammar.is_chords, chooses | ~complete, others)
        return mask


class PlannedEnds(Constraint):
    """Phrases and the piece end where a plan says: the bars before have its counts, see `phrases`.

    Those of the piece replace those of a phrase, as in training.
    After the plan's last end the model chooses where phrases end, and the piece does not end.

    Args:
        plans: grid step, ascending, and kind of each end, by sequence. [N, 2]
    """

    def __init__(self, grammar: SongsGrammar, plans: Sequence[IntArray]) -> None:
        self.grammar, self.slice = grammar, grammar.slices["Left"]
        self.steps, self.kinds = np.moveaxis(padded(plans, NEVER), 2, 0)  # [B, N + 1] each
        self.piece_ends = np.where(self.kinds == PIECE, self.steps, NEVER).min(axis=1)

    def allowed(self, state: BarState, memory: IntArray) -> BoolArray | None:
        grammar, left = self.grammar, self.slice
        is_bar = grammar.family[state.last] == grammar.numbers["Bar"]
        if not is_bar.any():
            return None
        steps = self.steps[memory]
        next_end = (steps < state.bar_end[:, None]).sum(axis=1)
        at = np.arange(len(memory)), next_end
        step, kind = steps[at][:, None], self.kinds[memory][at][:, None]
        begin = state.bar_start[:, None]
        lead_to = begin + LEFT_COUNTS * (state.bar_end[:, None] - begin)
        of_piece = (lead_to == self.piece_ends[memory][:, None]) & (LEFT_ENDS == PIECE)
        of_phrase = (lead_to == step) & (kind == LEFT_ENDS)
        due = np.where(of_piece.any(axis=1, keepdims=True), of_piece, of_phrase)
        mask = np.ones((len(memory), len(grammar.vocabulary)), bool)
        mask[is_bar & due.any(axis=1)] = False
        mask[:, left] = np.where(step < NEVER, due, LEFT_ENDS != PIECE)
        return mask | ~is_bar[:, None]


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

    def allowed(self, state: BarState, memory: IntArray) -> BoolArray:
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


class LowestPitches(Constraint):
    """No part has a note below its lowest pitch, such as the open G string of a violin.

    Args:
        ranks: of the lowest pitch of each part, among those of the vocabulary. [num_parts]
    """

    def __init__(self, grammar: SongsGrammar, ranks: IntArray) -> None:
        self.grammar, self.ranks = grammar, ranks

    def allowed(self, state: BarState, memory: IntArray) -> BoolArray:
        grammar, lowest = self.grammar, self.ranks[np.maximum(state.part, 0)]
        mask = np.ones((len(lowest), len(grammar.vocabulary)), bool)
        mask[:, grammar.slices["Pitch"]] = grammar.ranks["Pitch"] >= lowest[:, None]
        return mask


def bar_constraints(
    tokenizer: InBars,
    grammar: BarGrammar,
    request: Any,
    prompts: Sequence[Any],
    own: Sequence[Constraint],
    targets: BoolArray | None = None,
) -> list[Constraint]:
    """Return the constraints of a request on tokens of bars.

    Args:
        request, prompts: see `Tokenizer.constraints`.
        own: the tokenizer's own ones.
        targets: the parts that are written; None: all. [B, num_parts]
    """
    constraints, pitches = [*own], tokenizer.pitches
    is_whole = request.piece.is_whole_piece
    rests = [last_tonic(request, prompt, prompt.bar_length) for prompt in prompts]
    if any(rest.step < NEVER for rest in rests):
        starts, keys = np.array([rest.step for rest in rests]), [rest.key for rest in rests]
        lines = np.array([top_line(tokenizer, prompt.score) for prompt in prompts])
        roots, chord, lowest = (
            last_pitches(keys, pitches, below)[:, None]
            for below in (pitches.stop, BASS, pitches.stop if is_whole else MIDDLE)
        )
        tunes = lines & np.array([key is not None and not is_whole for key in keys])[:, None]
        chord, lowest = (np.where(tunes[..., None], roots, each) for each in (chord, lowest))
        kept_targets = targets if is_whole else None
        last = LastChordOfBars(grammar, starts, roots[:, 0], chord, lowest, kept_targets)
        at = int(is_whole)  # kept parts have priority
        neighbours, beat = tonic_pitches(keys, pitches, BY_STEP), tokenizer.steps_per_beat
        by_step = TuneByStep(grammar, starts, roots[:, 0], neighbours, tunes, beat)
        constraints[at:at] = [last, LastChordInRange(grammar, starts), by_step]
    if request.decoding.fix_tempo:
        constraints.append(FixedTempo(grammar))
    if request.decoding.fix_time_signature and not is_whole:
        constraints.append(FixedTimeSignature(grammar))
    return constraints
