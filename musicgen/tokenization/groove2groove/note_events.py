"""Conversion between notes and note-ons, note-offs and time shifts in canonical order."""

from dataclasses import dataclass

import numpy as np

from musicgen.tokenization.vocabulary import IntArray

STEPS_PER_BEAT = 12
NUM_KEYS = 128  # of each instrument

LONGEST_SHIFT = 24
"""In ticks. A shift (b, t) goes to tick t of the b-th beat after the current one."""


@dataclass(frozen=True)
class NoteEvents:
    """The ids of note-ons [0, N), note-offs [N, 2 N) and 24 shifts, for N = `num_voices`."""

    num_voices: int

    @property
    def first_shift(self) -> int:
        return 2 * self.num_voices

    def shift_times(self, shifts: IntArray) -> IntArray:
        """Return the times that consecutive shifts lead to, from 0. Ids [N] -> ticks [N]."""
        beats, tick = np.divmod(shifts.astype(np.int64) - self.first_shift + 1, STEPS_PER_BEAT)
        return np.cumsum(beats) * STEPS_PER_BEAT + tick

    def notes(
        self, tokens: IntArray, times: IntArray, end: int
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Return voice, onset and offset of the notes in ids [L] at ticks [L], sorted by voice.

        A note lasts until the next event of its voice, or until `end` if there is none.
        """
        events = np.flatnonzero(tokens < self.first_shift)
        is_off, voice = np.divmod(tokens[events], self.num_voices)
        order = np.argsort(voice.astype(np.int16), kind="stable")  # a radix sort for 16 bits
        voice, time = voice[order], times[events[order]]
        until = np.full(len(time), end)
        same = voice[1:] == voice[:-1]
        until[:-1][same] = time[1:][same]
        on = np.flatnonzero(is_off[order] == 0)
        return voice[on], time[on], until[on]

    def notes_at_once(self, tokens: IntArray) -> list[IntArray]:
        """Return, for each instrument, how many of its notes sound as each begins. Ids [L]."""
        is_off, voice = np.divmod(
            tokens[tokens < self.first_shift].astype(np.int64), self.num_voices
        )
        found = []
        for instrument in range(self.num_voices // NUM_KEYS):
            off = is_off[voice // NUM_KEYS == instrument]
            found.append(np.cumsum(1 - 2 * off)[off == 0])
        return found

    def sort(self, voice: IntArray, onset: IntArray, offset: IntArray) -> IntArray:
        """Return the note-ons and -offs of notes as ascending keys.

        The key of an event is 2 N time + voice, plus N for a note-on: by time, offs before ons.
        """
        off = offset * 2 * self.num_voices + voice
        on = onset * 2 * self.num_voices + self.num_voices + voice
        events = np.concatenate([off, on])
        events.sort()
        return events

    def serialise(self, events: IntArray) -> IntArray:
        """Return the ids of sorted keys, with the longest shifts first where time passes."""
        time, code = np.divmod(events, 2 * self.num_voices)
        before = np.append(0, time)[:-1]
        # A shift counts from the start of the current beat; more than 24 ticks take several.
        distance = np.where(time > before, time - before + before % STEPS_PER_BEAT, 0)
        num_shifts = -(-distance // LONGEST_SHIFT)
        at = np.cumsum(num_shifts) + np.arange(len(events))
        tokens = np.full(len(events) + int(num_shifts.sum()), self.first_shift + LONGEST_SHIFT - 1)
        tokens[at] = (code + self.num_voices) % (2 * self.num_voices)
        passes = num_shifts > 0
        tokens[at[passes] - 1] = (distance[passes] - 1) % LONGEST_SHIFT + self.first_shift
        return tokens
