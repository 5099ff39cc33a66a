"""How pieces end: where the last chord begins, its key, and its notes in tokens of bars."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from musicgen.midi import TICKS_PER_BEAT, NoteArray, Score, pitched_notes
from musicgen.midi.key import Key, final_key, named_key
from musicgen.midi.score import is_line, join_notes
from musicgen.tokenization.bar_grammar import BarGrammar, BarState
from musicgen.tokenization.chords import ROOTS, chord_index
from musicgen.tokenization.constraints import ROOT, TRIAD, Constraint, tonic_pitches
from musicgen.tokenization.grammar import NEVER, BoolArray
from musicgen.tokenization.vocabulary import IntArray

BASS = 48
"""Pitches below C3 are the tonic: it is the lowest note of 96 of 100 last chords of songs."""
MIDDLE = 60
"""Other notes of the chord below C4 begin only above a tonic that sounds: no C/E."""

DOMINANT = 7
"""Semitones from the tonic up to the root of its dominant chord."""
WHOLE_TONE, OCTAVE = 2, 12

BY_STEP = (11, 2)
"""Semitones above the tonic from which a tune steps to it: the leading tone, the second degree."""


class LastTonic(NamedTuple):
    """The tonic chord at the end of a piece.

    Attributes:
        step: the grid step at which it begins; NEVER: the end is left to the model.
        key: None: of any notes.
    """

    step: int = NEVER
    key: Key | None = None


def last_tonic(request: Any, prompt: Any, length: int) -> LastTonic:
    """Return the chord on which the continuation of a prompt comes to rest.

    Closed pieces do, and so do pieces with kept parts whose last note is the tonic. With chords
    that are given, closed pieces come to rest on the last one, if the last bar has no other;
    pieces with kept parts do not.

    Args:
        request: a `GenerationRequest`.
        length: grid steps of the chord, at the end of the last bar; with kept parts it begins with
            their last note.
    """
    piece, closes = request.piece, request.piece.is_closed
    if prompt.kept is not None:
        return LastTonic() if piece.progression else _below_last_note(piece, prompt, closes)
    if not closes:
        return LastTonic()
    start, key = request.end_time(prompt) - length, _key(piece, prompt)
    if piece.progression is not None:
        at, chord = request.progression(prompt)[-1].tolist()
        if at > start:  # the last bar has several chords
            return LastTonic()
        key = key if chord == tonic_index(key) else None
    return LastTonic(start, key)


def asked_tonic(request: Any, prompt: Any, length: int) -> LastTonic:
    """Return `last_tonic`; a new piece in a key that is asked for has one even if it is open."""
    asked, end = request.piece.tonic, request.end_time(prompt)
    if asked is None or end is None:
        return last_tonic(request, prompt, length)
    return LastTonic(end - length, asked)


def _key(piece: Any, prompt: Any) -> Key | None:
    """Return the key that is asked for, else that of the prompt; a number asks for a major key."""
    return final_key(prompt.score) if piece.key is None else named_key(piece.key)


def _below_last_note(piece: Any, prompt: Any, closes: bool) -> LastTonic:
    """Return the chord below the last note of kept parts, see `last_tonic`."""
    notes, kept = pitched_notes(prompt.score), prompt.kept
    key = _key(piece, prompt)
    is_to_end = kept.span[1] == np.inf and not len(kept.progression)
    if key is None or not is_to_end or not len(notes):
        return LastTonic()
    onset = int(notes["onset"].max())
    last = int(notes["pitch"][notes["onset"] == onset].max()) % 12
    if not closes and last != key.tonic:
        return LastTonic()
    return LastTonic(onset * prompt.tokenizer.steps_per_beat // TICKS_PER_BEAT, key)


def last_chord(request: Any, prompt: Any) -> IntArray:
    """Return grid step and index in `CHORDS` of the chords that are asked for. [N, 2]

    They are those of the request, else the tonic chord at the end. A bar of its dominant seventh
    leads there if there is room for it and no part is kept. Pieces from nothing in a key that is
    asked for end so even if they are not closed.
    """
    rest = asked_tonic(request, prompt, prompt.bar_length)
    if rest.key is None or request.piece.progression is not None:
        progression: IntArray = request.progression(prompt)
        return progression
    chords = [(rest.step, tonic_index(rest.key))]
    before = rest.step - prompt.bar_length
    if prompt.kept is None and before >= max(prompt.bar_length, prompt.end.step):
        dominant = chord_index(f"{ROOTS[(rest.key.tonic + DOMINANT) % 12]}_7")
        chords.insert(0, (before, dominant))
    return np.array(chords)


def tonic_index(key: Key | None) -> int | None:
    """Return the index in `CHORDS` of the tonic chord of a key; None without a key."""
    return key and chord_index(f"{ROOTS[key.tonic]}_{'M' if key.major else 'm'}")


def last_pitches(keys: Sequence[Key | None], pitches: range, below: int = BASS) -> BoolArray:
    """Return which MIDI pitches may be in the last chord, [B, num_pitches], see `tonic_pitches`.

    Args:
        below: pitches below this one are the tonic.
    """
    roots, triads = (tonic_pitches(keys, pitches, each) for each in (ROOT, TRIAD))
    return np.where(np.array(pitches) < below, roots, triads)


def top_line(tokenizer: Any, score: Score) -> BoolArray:
    """Return which part is the tune: the highest one, if it is a line. [num_parts]

    Without notes it is the first of several parts, such as the voice.
    """
    found = np.zeros(len(tokenizer.places), bool)
    roles = tokenizer.find_tracks(score.tracks)
    notes: dict[int, list[NoteArray]] = {}
    for track, role in zip(score.tracks, roles, strict=True):
        if role is not None and not track.is_drum and len(track.notes):
            notes.setdefault(role, []).append(track.notes)
    parts = {role: join_notes(of_part) for role, of_part in notes.items()}
    found[0] = not parts and len(tokenizer.instruments) > 1
    if parts:
        highest = max(parts, key=lambda role: float(parts[role]["pitch"].mean()))
        found[highest] = is_line(parts[highest])
    return found


class LastChordOfBars(Constraint):
    """The piece comes to rest on a chord: all notes that sound belong to it, and one begins.

    Earlier notes that are not among `lowest` end when it begins. Without kept parts its notes last
    for a third of the bar or longer, and none begins in the second half; the probability of such
    notes is added to that of the next part and of the end, as in `EndBy`. With kept parts, their
    notes stay as they are.

    Args:
        start: grid step at which the chord begins; NEVER: there is none. [B]
        roots: the pitches of the vocabulary that are its root. [B, num_pitches]
        chord: those of which each part may choose. [B, num_parts, num_pitches]
        lowest: those that may begin without a tonic below them. [B, num_parts, num_pitches]
        targets: the parts that are written below kept ones; None: no part is kept. [B, num_parts]
    """

    def __init__(
        self,
        grammar: BarGrammar,
        start: IntArray,
        roots: BoolArray,
        chord: BoolArray,
        lowest: BoolArray,
        targets: BoolArray | None = None,
    ) -> None:
        self.grammar, self.first, self.roots, self.targets = grammar, start, roots, targets
        self.chord, self.lowest = chord, lowest
        self._has_pitches = ~grammar.is_drum & ~grammar.is_chords  # [num_parts]
        self._may_be_last = grammar.of_families("Duration", "Drum", "Velocity")
        self._lengths = grammar.durations / grammar.unit  # in grid steps
        self._is_beat = grammar.of_families("Beat")
        self._ends_part = grammar.of_families("Part", "EOS")

    def allowed(self, state: BarState, memory: IntArray) -> BoolArray:
        start, slices = self.first[memory, None], self.grammar.slices
        is_last, part = state.time[:, None] >= start, np.maximum(state.part, 0)
        chord, lowest = self.chord[memory, part], self.lowest[memory, part]
        mask = np.ones((len(memory), len(self.grammar.vocabulary)), bool)
        mask[:, slices["Pitch"]] = chord & self._above_root(state, memory, lowest) | ~is_last
        pitch = np.clip(state.pitch, 0, chord.shape[1] - 1)
        may_go_on = np.take_along_axis(lowest, pitch[:, None], axis=1)
        ends = state.time[:, None] + self._lengths
        mask[:, slices["Duration"]] = may_go_on | (ends <= start) | is_last
        if self.targets is not None:
            return self._below_kept(state, memory, mask)
        mask[:, slices["EOS"]] = self._may_be_last[state.last][:, None] | ~is_last
        bar = (state.bar_end - state.bar_start)[:, None]
        third = np.minimum(bar / 3, (state.limit - state.time)[:, None])
        short = np.where(self._lengths <= third, self._lengths, 0).max(axis=1, keepdims=True)
        mask[:, slices["Duration"]] &= (self._lengths >= short) | ~is_last
        mask[:, slices["Beat"]] = (self.grammar.ranks["Beat"] <= bar / 2) | ~is_last
        return mask

    def _above_root(self, state: BarState, memory: IntArray, lowest: BoolArray) -> BoolArray:
        """Return the pitches that may begin above the notes that sound. [B, num_pitches]"""
        sounding = state.ends.reshape(len(memory), -1, lowest.shape[1]).max(axis=1)
        is_root = (sounding > state.time[:, None] * self.grammar.unit) & self.roots[memory]
        return lowest | np.logical_or.accumulate(is_root, axis=1)

    def _below_kept(self, state: BarState, memory: IntArray, mask: BoolArray) -> BoolArray:
        """Return the mask [B, V] without limits on kept parts.

        If a target part has pitches, one sounds the root, before drums may come.
        """
        assert self.targets is not None
        targets, start = self.targets[memory], self.first[memory]
        part = np.maximum(state.part, 0)[:, None]
        is_kept = ~np.take_along_axis(targets, part, axis=1)[:, 0] & (state.part >= 0)
        mask[is_kept] = True
        ends = state.ends.reshape(len(memory), len(self.grammar.is_drum), -1)
        ends = np.where(self.roots[memory][:, None], ends, 0).max(axis=2)
        sings = targets & self._has_pitches
        sounds = ((ends > start[:, None] * self.grammar.unit) & sings).any(axis=1)
        is_silent = sings.any(axis=1) & ~sounds & (state.bar_end > start)
        mask[is_silent, self.grammar.slices["Bar"]] = False
        mask[is_silent, self.grammar.slices["Part"]] &= ~self.grammar.is_drum
        return mask

    def redirect(self, state: BarState, logits: Tensor, allowed: Tensor) -> Tensor:
        is_last = (state.bar_end >= state.limit) & (self.targets is None)
        if not is_last.any():
            return logits
        is_late = self._is_beat & self.grammar.allowed(state).numpy() & is_last[:, None]
        is_late = torch.from_numpy(is_late) & ~allowed
        ends = allowed & torch.from_numpy(self._ends_part)
        late, end = (logits.masked_fill(~x, -torch.inf).logsumexp(1) for x in (is_late, ends))
        more = torch.where(end.isfinite(), torch.logaddexp(end, late) - end, 0.0)
        return torch.where(ends, logits + more[:, None], logits)


class LastChordInRange(Constraint):
    """In the last chord each part stays within a whole tone of the range that it has had so far.

    The range is an octave or more, so that the root is in it; a part without notes so far has any.

    Args:
        start: grid step at which the chord begins; NEVER: there is none. [B]
    """

    def __init__(self, grammar: BarGrammar, start: IntArray) -> None:
        self.grammar, self.first = grammar, start

    def allowed(self, state: BarState, memory: IntArray) -> BoolArray | None:
        is_last = state.time >= self.first[memory]
        if not is_last.any():
            return None
        pitches = self.grammar.ranks["Pitch"]
        ends = state.ends.reshape(len(memory), -1, len(pitches))  # 0: it has not sounded yet
        sounded = ends[np.arange(len(memory)), np.maximum(state.part, 0)] > 0
        low = sounded.argmax(axis=1)[:, None] - WHOLE_TONE
        high = len(pitches) - 1 - sounded[:, ::-1].argmax(axis=1)[:, None] + WHOLE_TONE
        is_near = (pitches >= low) & (pitches <= np.maximum(high, low + OCTAVE - 1))
        is_free = ~is_last | ~sounded.any(axis=1)
        mask = np.ones((len(memory), len(self.grammar.vocabulary)), bool)
        mask[:, self.grammar.slices["Pitch"]] = is_near | is_free[:, None]
        return mask


class TuneByStep(Constraint):
    """The tune steps to the tonic of the last chord, from the second degree or the leading tone.

    In the last beat before the chord its notes are one of these, and other notes end before it. In
    the chord its tonic is the one that is nearest to its last note.

    Args:
        start: grid step at which the chord begins; NEVER: there is none. [B]
        roots: the pitches of the vocabulary that are its root. [B, num_pitches]
        neighbours: those from which the tune steps to it, see `BY_STEP`. [B, num_pitches]
        tunes: which part is the tune. [B, num_parts]
        beat: its length in grid steps.
    """

    def __init__(
        self,
        grammar: BarGrammar,
        start: IntArray,
        roots: BoolArray,
        neighbours: BoolArray,
        tunes: BoolArray,
        beat: int,
    ) -> None:
        self.grammar, self.first, self.tunes, self.beat = grammar, start, tunes, beat
        self.roots, self.neighbours = roots, neighbours
        self._lengths = grammar.durations / grammar.unit  # in grid steps

    def allowed(self, state: BarState, memory: IntArray) -> BoolArray | None:
        part, start = np.maximum(state.part, 0), self.first[memory]
        is_tune = self.tunes[memory, part] & (state.bar_end >= start)
        if not is_tune.any():
            return None
        grammar, rows, time = self.grammar, np.arange(len(memory)), state.time[:, None]
        roots, neighbours = self.roots[memory], self.neighbours[memory]
        ends = state.ends.reshape(len(memory), -1, roots.shape[1])[rows, part]
        distance = np.abs(np.arange(roots.shape[1]) - ends.argmax(axis=1)[:, None])
        distance = np.where(roots, distance, NEVER)
        nearest = distance == distance.min(axis=1, keepdims=True)
        nearest |= ~ends.any(axis=1, keepdims=True)  # the tune begins here
        start = start[:, None]
        last_beat = start - self.beat
        mask = np.ones((len(memory), len(grammar.vocabulary)), bool)
        mask[:, grammar.slices["Pitch"]] = np.where(
            time < start, neighbours | (time < last_beat), nearest
        )
        is_neighbour = neighbours[rows, np.maximum(state.pitch, 0)][:, None]
        ends_before = time + self._lengths <= last_beat
        mask[:, grammar.slices["Duration"]] = is_neighbour | ends_before | (time >= start)
        return mask | ~is_tune[:, None]
