"""The grammar of Groove2Groove as batched masks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from musicgen.tokenization.closing import LastTonic, last_pitches
from musicgen.tokenization.constraints import Constraint
from musicgen.tokenization.grammar import NEVER, BoolArray, Grammar, GrammarState, Ids, latest
from musicgen.tokenization.instruments import BASS_PROGRAMS, Instrument
from musicgen.tokenization.vocabulary import IntArray, Vocabulary, within

STEPS_PER_BEAT = 12
NUM_KEYS = 128
"""MIDI keys of each instrument."""


@dataclass
class GrooveState(GrammarState):
    """The state of Groove2Groove sequences."""

    last_event: IntArray  # the last token that is no velocity and no key [B]
    ends: IntArray  # time by which each voice (track and key) must end, 0 if silent [B, num_voices]
    longest: IntArray  # maximum length of a note of each track, in ticks [B, num_tracks]


class GrooveGrammar(Grammar[GrooveState]):
    """BOS; at each time note-offs, then note-ons, both ascending; EOS once nothing sounds.

    If the vocabulary has keys, one follows BOS; if it has velocities, one follows each note-on.
    A shift may follow another only if that was the longest one. No note outlasts its maximum
    length or that of the piece: time passes at most to the end of the next such note, where it is
    closed before anything else. At the maximum length of a piece no note begins.

    Args:
        max_durations: maximum length of a note of each voice, in ticks. [num_voices]
        limit: maximum length of a piece, in ticks.
    """

    state_type = GrooveState

    def __init__(
        self,
        vocabulary: Vocabulary,
        families: Mapping[str, range],
        max_durations: IntArray,
        limit: int,
    ) -> None:
        super().__init__(vocabulary, families)
        self.bos = vocabulary.id("BOS")
        self.num_voices = len(families["NoteOn"])
        self.num_instruments = self.num_voices // NUM_KEYS
        self.shifts = families["TimeShift"]
        self.velocities = families["Velocity"]
        self.longest_shift = self.shifts.stop - 1
        self._is_key = self.of_families("Key")
        # Tokens after which the same may follow as before them.
        self._adds = self.of_families("Velocity", "Key")
        self.limit = limit
        self.max_durations = max_durations
        self._voices = np.arange(self.num_voices)
        self._forward = np.arange(1, len(self.shifts) + 1)  # ticks of a shift from the beat
        self._columns = [self.num_voices, 2 * self.num_voices, self.shifts.stop]

    def _initial_fields(self, batch: int) -> dict[str, Any]:
        return super()._initial_fields(batch) | {
            "limit": np.full(batch, self.limit),
            "last_event": np.full(batch, self.pad),
            "ends": np.zeros((batch, self.num_voices), np.int64),
            "longest": np.tile(self.max_durations[::NUM_KEYS], (batch, 1)),
        }

    def shorten(self, state: GrooveState, longest: IntArray) -> GrooveState:
        """Return a state in which no note of a track is longer than its longest so far.

        Args:
            longest: ticks of the longest note of each track; 0 keeps the track's bound.
                [B, num_tracks]
        """
        now = np.minimum(state.longest, np.where(longest, longest, NEVER))
        less = (state.longest - now).repeat(NUM_KEYS, axis=1)
        ends = np.where(state.ends, state.ends - less, 0)
        return replace(state, longest=now, ends=ends)

    def end_by(self, state: GrooveState, limit: Ids) -> GrooveState:
        state = super().end_by(state, limit)
        return replace(state, ends=np.minimum(state.ends, state.limit[:, None]))

    def _allowed(self, state: GrooveState, earliest: Mapping[str, IntArray]) -> BoolArray:
        num_voices, last, time = self.num_voices, state.last_event[:, None], state.time[:, None]
        after_on = last < num_voices
        after_off = (last >= num_voices) & (last < 2 * num_voices)
        after_bos, begun = last == self.bos, last != self.pad
        sounding = state.ends != 0
        next_end, next_voice = self.next_end(state)
        any_sounding = next_voice < num_voices
        is_due = next_end <= time
        mask = np.empty((len(last), len(self.vocabulary)), dtype=bool)
        on, off, shift, others = np.split(mask, self._columns, axis=1)

        lowest_on = np.where(begun & ~is_due, np.where(after_on, last + 1, 0), num_voices)
        np.logical_and(~sounding, self._voices >= lowest_on, out=on)

        lowest_off = np.where(after_on, num_voices, np.where(after_off, last - num_voices + 1, 0))
        np.logical_and(sounding, self._voices >= lowest_off, out=off)
        # Offs ascend, so that none may pass over a voice that must end now.
        off &= self._voices <= np.where(is_due, next_voice, num_voices)

        tick = time % STEPS_PER_BEAT
        may_shift = after_on | after_off | (last == self.longest_shift) | after_bos
        np.logical_and(may_shift, self._forward > tick, out=shift)
        # Without a note to close there, nothing can follow at the limit.
        shift &= time - tick + self._forward < next_end + any_sounding
        others[:, :1] = ~any_sounding & (after_off | after_bos)  # EOS
        others[:, 1:2] = ~begun  # BOS
        others[:, 2:] = False
        if self.velocities:
            needs_velocity = state.last < num_voices
            mask[needs_velocity] = within(np.arange(len(self.vocabulary)), self.velocities)
        if self._is_key.any():
            mask[state.last == self.bos] = self._is_key
        return mask

    def time_tokens(self, state: GrooveState, until: IntArray) -> BoolArray:
        tokens = np.arange(len(self.vocabulary))
        next_end, time = self.next_end(state)[0], state.time[:, None]
        arrival = time - time % STEPS_PER_BEAT + tokens - self.shifts.start + 1
        # An event must follow any shift but the longest.
        ready = arrival >= np.minimum(until[:, None], next_end)
        closes = (tokens >= self.num_voices) & (tokens < 2 * self.num_voices) & (next_end <= time)
        passes = within(tokens, self.shifts) & (ready | (tokens == self.longest_shift))
        return passes | closes | self._is_key

    def _advance(self, state: GrooveState, ids: IntArray) -> tuple[IntArray, dict[str, Any]]:
        shift, (beat, tick) = within(ids, self.shifts), np.divmod(state.time, STEPS_PER_BEAT)
        beats, ticks = np.divmod(ids - self.shifts.start + 1, STEPS_PER_BEAT)
        beat = beat + np.where(shift, beats, 0).cumsum(axis=0)
        time = beat * STEPS_PER_BEAT + latest(tick, shift, ticks)
        is_off, voice = np.divmod(ids, self.num_voices)
        longest = np.take_along_axis(state.longest.T, voice // NUM_KEYS, axis=0)
        end = np.where(is_off, 0, np.minimum(time + longest, state.limit))
        ends, before = np.empty((len(ids), *state.ends.shape), np.int64), state.ends
        for now, is_event, voices, until in zip(ends, is_off < 2, voice, end, strict=True):
            now[:] = before
            now[is_event, voices[is_event]] = until[is_event]
            before = now
        last_event = latest(state.last_event, ~self._adds[ids], ids)
        return time, {"ends": ends, "last_event": last_event}

    def next_end(self, state: GrooveState) -> tuple[IntArray, IntArray]:
        """Return the time by which a note or else the piece must end, and its voice. [B, 1].

        The lowest voice where several must end, `num_voices` if none sounds.
        """
        ends = np.where(state.ends, state.ends, NEVER)
        voice = ends.argmin(axis=1)[:, None]
        end = np.take_along_axis(ends, voice, axis=1)
        sounds = end < NEVER
        return np.where(sounds, end, state.limit[:, None]), np.where(sounds, voice, self.num_voices)


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


class LastChordOfGroove(Constraint):
    """The last bar comes to rest on a chord, which begins with the bar.

    Notes outside the chord end there. Its notes begin in the first third of the bar, and are held
    for the second third, unless they have their longest duration before. Its root begins at once,
    in the bass, or where no bass has played so far in another instrument that has.

    The memory is the number of the prompt, whether each instrument has played, and whether other
    tokens have come. [B, 2 + N]

    Args:
        rests: grid step at which each chord begins, and its key. [B]
        thirds: grid steps in a third of the bar. [B]
        voices: those of the chord, its roots in the bass and in other instruments, and those that
            are held. [4, B, num_voices]
    """

    def __init__(
        self,
        grammar: GrooveGrammar,
        rests: Sequence[LastTonic],
        thirds: IntArray,
        voices: BoolArray,
    ) -> None:
        self.grammar = grammar
        self.first = np.array([rest.step for rest in rests])
        self.thirds = thirds
        self.chord, self.bass, self.others, self.held = voices
        # The place of each token in the memory: the last one if it begins no note. [V]
        self._places = np.full(len(grammar.vocabulary), -1)
        self._places[grammar.slices["NoteOn"]] = 1 + np.arange(grammar.num_voices) // NUM_KEYS

    def start(self, state: GrooveState, prompts: Sequence[IntArray]) -> IntArray:
        memory = np.zeros((len(prompts), 2 + self.grammar.num_voices // NUM_KEYS), np.int64)
        memory[:, 0] = np.arange(len(prompts))
        for of_prompt, tokens in zip(memory, prompts, strict=True):
            of_prompt[self._places[np.asarray(tokens)]] = 1
        return memory

    def advance(self, state: GrooveState, memory: IntArray, tokens: IntArray) -> IntArray:
        after = memory.copy()
        after[np.arange(len(memory)), self._places[tokens]] = 1
        return after

    def allowed(self, state: GrooveState, memory: IntArray) -> BoolArray:
        grammar, num_voices = self.grammar, self.grammar.num_voices
        prompt, has_played = memory[:, 0], memory[:, 1:-1].repeat(NUM_KEYS, axis=1) > 0
        chord = self.chord[prompt]
        bass, others = self.bass[prompt] & has_played, self.others[prompt] & has_played
        must = np.where(bass.any(axis=1, keepdims=True), bass, others)
        time, start = state.time[:, None], self.first[prompt, None]
        is_last, onset_end = time >= start, start + self.thirds[prompt, None]
        hold_end = onset_end + self.thirds[prompt, None]
        voices, sounding = np.arange(num_voices), state.ends != 0
        outside = sounding & ~chord & is_last
        must_end = outside.any(axis=1, keepdims=True)
        # Both note-offs and note-ons ascend: none passes over a voice that must end or begin.
        first_outside = outside.argmax(axis=1)[:, None]
        must_begin = is_last & must.any(axis=1, keepdims=True)
        must_begin &= ~(must & sounding).any(axis=1, keepdims=True) & (time == start)
        last_must = num_voices - 1 - must[:, ::-1].argmax(axis=1)[:, None]
        held = self.held[prompt]
        may_end = ~held | (state.ends <= time) | (time >= hold_end) | ~is_last

        mask = np.ones((len(memory), len(grammar.vocabulary)), bool)
        on, off, shift = (mask[:, grammar.slices[x]] for x in ("NoteOn", "NoteOff", "TimeShift"))
        on &= ~is_last | chord & ~must_end & (time <= onset_end)
        on &= ~must_begin | (voices <= last_must)
        off &= np.where(must_end, voices <= first_outside, may_end)
        arrival = time - time % STEPS_PER_BEAT + np.arange(1, shift.shape[1] + 1)
        any_sounding = sounding.any(axis=1, keepdims=True)
        # At the end of a shift, unless it is the longest one, a note may begin or end.
        may_arrive = (arrival <= onset_end) | (arrival == grammar.next_end(state)[0])
        may_arrive |= (sounding & ~held).any(axis=1, keepdims=True)
        may_arrive |= any_sounding & (arrival >= hold_end)
        may_arrive[:, -1:] |= any_sounding
        shift &= np.where(is_last, may_arrive, arrival <= start)
        shift &= ~(must_end | must_begin)
        mask[:, grammar.eos] = ~must_begin[:, 0]
        return mask


def last_voices(
    instruments: Sequence[Instrument], rests: Sequence[LastTonic], targets: BoolArray
) -> BoolArray:
    """Return the voices of the last chords, see `LastChordOfGroove`.

    The bass, and low notes of other instruments, are the tonic. Drums always belong to the chord.

    Args:
        rests: the chords. [B]
        targets: the instruments that are written. [B, num_instruments]

    Returns:
        [4, B, num_voices].
    """
    keys = [rest.key for rest in rests]
    triads = last_pitches(keys, range(NUM_KEYS))
    roots = last_pitches(keys, range(NUM_KEYS), below=NUM_KEYS)
    is_drum = np.array([each.is_drum for each in instruments])
    is_bass = np.array([each.program in BASS_PROGRAMS for each in instruments]) & ~is_drum
    chord = np.where(is_bass[:, None], roots[:, None], triads[:, None]) | is_drum[:, None]
    targets = targets & np.array([[key is not None] for key in keys])
    bass, others = (
        (targets & each)[:, :, None] & roots[:, None] for each in (is_bass, ~is_bass & ~is_drum)
    )
    shape = len(rests), len(instruments) * NUM_KEYS
    held = np.broadcast_to(~is_drum[:, None], chord.shape)
    return np.stack([each.reshape(shape) for each in (chord, bass, others, held)])
