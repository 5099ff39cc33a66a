"""The events of Groove2Groove: note-ons, note-offs and the shifts of time between them.

If a vocabulary has velocities, that of a note follows its note-on.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from musicgen.tokenization.vocabulary import IntArray, within

STEPS_PER_BEAT = 12
NUM_KEYS = 128
"""MIDI keys of each instrument."""

LONGEST_SHIFT = 24
"""In ticks. A shift (b, t) goes to tick t of the b-th beat after the current one."""


class VoiceNotes(NamedTuple):
    """Columns of notes, [N] each. A voice is a key of an instrument: instrument * 128 + key.

    The times are ticks: twelfths of a beat. A velocity is the index of its token in the family, 0
    without velocities.
    """

    voice: IntArray
    onset: IntArray
    release: IntArray
    velocity: IntArray

    @property
    def instrument(self) -> IntArray:
        return self.voice // NUM_KEYS

    @property
    def key(self) -> IntArray:
        return self.voice % NUM_KEYS


class NoteEvents:
    """Conversion between notes and the ids of their events.

    Args:
        families: the ids of each family; `NoteOn` and `NoteOff` have one for each voice;
            `Velocity` may be empty.
    """

    def __init__(self, families: Mapping[str, range]) -> None:
        self.families = families
        self.num_voices = len(families["NoteOn"])
        self.velocities = families["Velocity"]

    def times(self, tokens: IntArray) -> IntArray:
        """Return the tick of each id; a shift has the time it leads to. [L] -> [L]."""
        is_shift = within(tokens, self.families["TimeShift"])
        times = np.concatenate([[0], self.shift_times(tokens[is_shift])])
        return times[np.cumsum(is_shift)]

    def shift_times(self, shifts: IntArray) -> IntArray:
        """Return the times that consecutive shifts lead to, from 0. Ids [N] -> ticks [N]."""
        ticks = shifts.astype(np.int64) - self.families["TimeShift"].start + 1
        beats, tick = np.divmod(ticks, STEPS_PER_BEAT)
        return np.cumsum(beats) * STEPS_PER_BEAT + tick

    def notes(self, tokens: IntArray, times: IntArray, end: int) -> VoiceNotes:
        """Return the notes of ids [L] at ticks [L], sorted by voice.

        A note lasts until the next event of its voice, or until `end` if there is none. A note-on
        without its velocity has the lowest one.
        """
        events = np.flatnonzero(tokens < 2 * self.num_voices)
        is_off, voice = np.divmod(tokens[events], self.num_voices)
        order = np.argsort(voice.astype(np.int16), kind="stable")  # a radix sort for 16 bits
        voice, time = voice[order], times[events[order]]
        release = np.full(len(time), end)
        same = voice[1:] == voice[:-1]
        release[:-1][same] = time[1:][same]
        on = np.flatnonzero(is_off[order] == 0)
        velocity = np.zeros_like(on)
        if self.velocities:
            following = np.append(tokens, -1)[events[order][on] + 1]
            is_known = within(following, self.velocities)
            velocity = np.where(is_known, following - self.velocities.start, 0)
        return VoiceNotes(voice[on], time[on], release[on], velocity)

    def tokens(self, notes: VoiceNotes, before: int | None = None) -> IntArray:
        """Return the ids of notes, after BOS. -> [L]

        At each time note-offs come before note-ons, both by voice. Where time passes, the longest
        shifts come first.

        Args:
            before: tick from which on events are left out, of an incomplete piece; None: all are
                there, and EOS.
        """
        num_voices, num_velocities = self.num_voices, max(1, len(self.velocities))
        # An event as a number that sorts it: 2 N time + voice, plus N for a note-on; with the
        # velocity of a note-on as the last digit.
        ons = notes.onset * 2 * num_voices + num_voices + notes.voice
        offs = notes.release * 2 * num_voices + notes.voice
        events = np.concatenate([offs * num_velocities, ons * num_velocities + notes.velocity])
        events.sort()
        if before is not None:
            events = events[events < before * 2 * num_voices * num_velocities]
        events, velocity = np.divmod(events, num_velocities)
        time, code = np.divmod(events, 2 * num_voices)
        previous, shifts = np.append(0, time)[:-1], self.families["TimeShift"]
        # A shift counts from the start of the current beat; more than 24 ticks take several.
        distance = np.where(time > previous, time - previous + previous % STEPS_PER_BEAT, 0)
        num_shifts = -(-distance // LONGEST_SHIFT)  # rounded up
        has_velocity = (code >= num_voices) & bool(self.velocities)
        num_others = num_shifts + np.append(0, has_velocity)[:-1]  # between an event and the last
        at = 1 + np.cumsum(num_others) + np.arange(len(events))
        num_tokens = 1 + len(events) + int(num_shifts.sum() + has_velocity.sum())
        tokens = np.full(num_tokens, shifts.stop - 1)
        tokens[0] = self.families["BOS"].start
        tokens[at] = (code + num_voices) % (2 * num_voices)
        tokens[at[has_velocity] + 1] = velocity[has_velocity] + self.velocities.start
        passes = num_shifts > 0
        tokens[at[passes] - 1] = (distance[passes] - 1) % LONGEST_SHIFT + shifts.start
        return np.append(tokens, self.families["EOS"].start) if before is None else tokens
