"""Notes to note-ons, note-offs and time shifts in canonical order, and back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from musicgen.tokenization.vocabulary import IntArray

STEPS_PER_BEAT = 12

LONGEST_SHIFT = 24
"""A shift by (b beats, to tick t) goes to 12 b + t ticks after the start of the current beat."""


@dataclass(frozen=True)
class NoteEvents:
    """The ids of note-ons [0, N), note-offs [N, 2 N) and 24 shifts, for N = `num_voices`."""

    num_voices: int

    @property
    def first_shift(self) -> int:
        return 2 * self.num_voices

    @property
    def end_shift(self) -> int:
        return self.first_shift + LONGEST_SHIFT

    def shift_times(self, shifts: IntArray) -> IntArray:
        """Where consecutive shifts lead to, from time 0. Ids [num_shifts] -> ticks [num_shifts]."""
        beats, tick = np.divmod(shifts.astype(np.int64) - self.first_shift + 1, STEPS_PER_BEAT)
        return np.cumsum(beats) * STEPS_PER_BEAT + tick

    def notes(
        self, tokens: IntArray, times: IntArray, unclosed: int
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Voice, onset and offset of the notes that begin in `tokens`, sorted by voice.

        A note lasts until the next event of its voice; without one, until `unclosed`.

        Args:
            tokens, times: ids and their ticks. [L]
        """
        events = np.flatnonzero(tokens < self.first_shift)
        is_off, voice = np.divmod(tokens[events], self.num_voices)
        order = np.argsort(voice.astype(np.int16), kind="stable")  # 16 bits: a radix sort
        voice, time = voice[order], times[events[order]]
        until = np.full(len(time), unclosed)
        same = voice[1:] == voice[:-1]
        until[:-1][same] = time[1:][same]
        on = np.flatnonzero(is_off[order] == 0)
        return voice[on], time[on], until[on]

    def sort(self, voice: IntArray, onset: IntArray, offset: IntArray) -> IntArray:
        """Ons and offs of notes as ascending numbers: by time, offs before ons, by voice.

        The number of an event is 2 N time + voice, and N more if it is an on.
        """
        off = offset * 2 * self.num_voices + voice
        on = onset * 2 * self.num_voices + self.num_voices + voice
        events = np.concatenate([off, on])
        events.sort()
        return events

    def serialise(self, events: IntArray) -> IntArray:
        """The ids of sorted events, with the longest shifts first wherever time passes."""
        time, code = np.divmod(events, 2 * self.num_voices)
        before = np.zeros_like(time)
        before[1:] = time[:-1]
        # From the start of the beat that was reached; what is above 24 needs several shifts.
        distance = np.where(time > before, time - before + before % STEPS_PER_BEAT, 0)
        num_shifts = -(-distance // LONGEST_SHIFT)
        place = np.cumsum(num_shifts) + np.arange(len(events))
        tokens = np.full(len(events) + int(num_shifts.sum()), self.end_shift - 1)
        tokens[place] = (code + self.num_voices) % (2 * self.num_voices)
        passes = num_shifts > 0
        last_shift = (distance[passes] - 1) % LONGEST_SHIFT
        tokens[place[passes] - 1] = last_shift + self.first_shift
        return tokens
