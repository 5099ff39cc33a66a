"""Groove2Groove: several tracks as note-ons and -offs in 12ths of a beat (Cífka et al. 2020)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from musicgen.midi import DEFAULT_VELOCITY, NOTE, TICKS_PER_BEAT, Score, Track, sort_notes
from musicgen.tokenization.base import Losses, Rng, Tokenizer
from musicgen.tokenization.groove2groove.grammar import STEPS_PER_BEAT, GrooveGrammar
from musicgen.tokenization.groove2groove.instruments import (
    DEFAULT_TRACKS,
    NUM_KEYS,
    find_instrument,
    instruments_of,
)
from musicgen.tokenization.quantization import GridNotes, remove_overlaps
from musicgen.tokenization.remi.metre import in_whole_bars
from musicgen.tokenization.vocabulary import IntArray, number_tokens, within
from musicgen.validation import check_float, check_int

LONGEST_SHIFT = 24
"""In ticks. A shift (b, t) goes to tick t of the b-th beat after the current one."""


class _Dropout(NamedTuple):
    """Random changes of a crop: tracks that are dropped, and bars that are cut out."""

    draws: NDArray[np.float64]  # a track with a low one is dropped [num_tracks]
    skipped: NDArray[np.bool_]  # bars to cut out, unless they contain all notes [num_bars]
    bar_length: int  # in grid steps


class Groove2Groove(Tokenizer):
    """`BOS`, then note-offs and note-ons, time shifts where time passes, `EOS`.

    `find_instrument` assigns the tracks of a Score to instruments; notes of tracks without one are
    dropped. Onsets and durations are rounded to 1/12 beat; velocity and tempo are lost.

    Args:
        tracks: mappings with the attributes of `Instrument`, of which only the name is required.
        max_beats: later onsets are dropped, notes that last longer are cut.
        max_note_beats, max_drum_beats: longer notes, and longer notes of drums, are cut, and the
            grammar closes them, so that no generated note hangs; None for no maximum.
        max_transposition: training crops are shifted by up to this many semitones, except drums.
        drop_track_probability: of dropping each track of a training crop; one always stays.
        skip_bar_probability: of cutting each bar but the first out of a training crop.
    """

    name: ClassVar[str] = "groove2groove"
    note_families = ("NoteOn",)
    steps_per_beat = STEPS_PER_BEAT
    pitches = range(NUM_KEYS)

    def __init__(
        self,
        *,
        tracks: Sequence[Mapping[str, Any]] = DEFAULT_TRACKS,
        max_beats: int = 16384,
        max_note_beats: int | None = 16,
        max_drum_beats: int | None = 1,
        max_transposition: int = 5,
        drop_track_probability: float = 0.1,
        skip_bar_probability: float = 0.05,
    ) -> None:
        check_int("max_beats", max_beats)
        check_int("max_note_beats", max_note_beats, none_means="no maximum")
        check_int("max_drum_beats", max_drum_beats, none_means="no maximum")
        check_int("max_transposition", max_transposition, 0)
        check_float("drop_track_probability", drop_track_probability, maximum=1)
        check_float("skip_bar_probability", skip_bar_probability, maximum=1)
        self.instruments = instruments_of(tracks)
        self.tracks = [{**i._asdict(), "takes": list(map(list, i.takes))} for i in self.instruments]
        self.max_beats = max_beats
        self.max_note_beats, self.max_drum_beats = max_note_beats, max_drum_beats
        self.max_transposition = max_transposition
        self.drop_track_probability = drop_track_probability
        self.skip_bar_probability = skip_bar_probability
        voices = [f"{i.name}_{key}" for i in self.instruments for key in range(NUM_KEYS)]
        shifts = [divmod(ticks, STEPS_PER_BEAT) for ticks in range(1, LONGEST_SHIFT + 1)]
        families = {
            "NoteOn": [f"NoteOn_{voice}" for voice in voices],
            "NoteOff": [f"NoteOff_{voice}" for voice in voices],
            "TimeShift": [f"TimeShift_{beats}_{tick}" for beats, tick in shifts],
            "EOS": ["EOS"],
            "BOS": ["BOS"],
        }
        self.vocabulary, self.families = number_tokens(families)
        self._num_voices = len(voices)
        longest = [max_drum_beats if i.is_drum else max_note_beats for i in self.instruments]
        beats = [min(each or max_beats, max_beats) for each in longest]
        self._max_durations = np.repeat(beats, NUM_KEYS) * STEPS_PER_BEAT  # of each voice, in ticks

    def grammar(self) -> GrooveGrammar:
        limit = self.max_beats * STEPS_PER_BEAT
        return GrooveGrammar(self.vocabulary, self.families, self._max_durations, limit)

    def find_track(self, track: Track) -> int | None:
        return find_instrument(track, self.instruments)

    def encode_with_losses(self, score: Score) -> tuple[IntArray, Losses]:
        bar = self.bar_length(score)
        losses = in_whole_bars(score, STEPS_PER_BEAT, lambda metre: bar)
        losses.end = self.max_beats * STEPS_PER_BEAT, f"beat {self.max_beats}"
        found = [self.find_track(track) for track in losses.score.tracks]
        notes, index = losses.numbered_notes(found, "notes of tracks without an instrument")
        losses.round(notes["onset"], index)
        onset, duration, inside = losses.notes_inside(notes)
        voice = (notes["pitch"] + index * NUM_KEYS)[inside]
        columns = GridNotes(voice, onset, duration, notes["velocity"][inside])
        kept = remove_overlaps(columns, losses)
        longest = self._max_durations[kept.voice]
        losses.clip("notes longer than the maximum", kept.onset[kept.duration > longest])
        duration = np.minimum(kept.duration, longest)
        events = self._sorted_events(kept.voice, kept.onset, kept.onset + duration)
        return self._frame(events, end=True), losses

    def decode(self, tokens: IntArray) -> Score:
        """Return all instruments in order, including empty ones; no tempo; constant velocity.

        Notes that still sound at the end are closed there, after at least one grid step.
        """
        tokens = self.until_end(tokens)
        times = self.times(tokens)
        voice, onset, offset = self._notes(tokens, times, int(times.max(initial=0)))
        notes = np.empty(len(voice), NOTE)
        step = TICKS_PER_BEAT // self.steps_per_beat
        notes["onset"] = onset * step
        notes["duration"] = np.maximum(offset - onset, 1) * step
        notes["velocity"] = DEFAULT_VELOCITY
        track, notes["pitch"] = np.divmod(voice, NUM_KEYS)
        tracks = [
            Track(each.name, each.program, each.is_drum, sort_notes(notes[track == index]))
            for index, each in enumerate(self.instruments)
        ]
        return Score(TICKS_PER_BEAT, tracks)

    def times(self, tokens: IntArray) -> IntArray:
        """Return the tick (1/12 beat) of each id; a shift has the time it leads to. [L] -> [L]."""
        is_shift = within(tokens, self.families["TimeShift"])
        times = np.concatenate([[0], self._shift_times(tokens[is_shift])])
        return times[np.cumsum(is_shift)]

    def _shift_times(self, shifts: IntArray) -> IntArray:
        """Return the times that consecutive shifts lead to, from 0. Ids [N] -> ticks [N]."""
        ticks = shifts.astype(np.int64) - self.families["TimeShift"].start + 1
        beats, tick = np.divmod(ticks, STEPS_PER_BEAT)
        return np.cumsum(beats) * STEPS_PER_BEAT + tick

    def _notes(
        self, tokens: IntArray, times: IntArray, end: int
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Return voice, onset and offset of the notes in ids [L] at ticks [L], sorted by voice.

        A note lasts until the next event of its voice, or until `end` if there is none.
        """
        events = np.flatnonzero(tokens < 2 * self._num_voices)
        is_off, voice = np.divmod(tokens[events], self._num_voices)
        order = np.argsort(voice.astype(np.int16), kind="stable")  # a radix sort for 16 bits
        voice, time = voice[order], times[events[order]]
        until = np.full(len(time), end)
        same = voice[1:] == voice[:-1]
        until[:-1][same] = time[1:][same]
        on = np.flatnonzero(is_off[order] == 0)
        return voice[on], time[on], until[on]

    def notes_at_once(self, tokens: IntArray) -> list[IntArray]:
        """Return, for each instrument, how many of its notes sound as each begins. Ids [L]."""
        events = tokens[tokens < 2 * self._num_voices].astype(np.int64)
        is_off, voice = np.divmod(events, self._num_voices)
        offs = [is_off[voice // NUM_KEYS == i] for i in range(len(self.instruments))]
        return [np.cumsum(1 - 2 * off)[off == 0] for off in offs]

    def crop_starts(self, tokens: IntArray, *, bar_length: int) -> IntArray:
        shifts = np.flatnonzero(within(tokens, self.families["TimeShift"]))
        ons = np.flatnonzero(tokens < self._num_voices)
        if not len(ons):
            return np.empty((0, 2), np.int64)
        times = self._shift_times(tokens[shifts])
        last_onset = int(self.times(tokens)[ons[-1]])
        starts = bar_length * np.arange(1, last_onset // bar_length + 1)
        # The first shift into a bar counts from the beat before it. The first bar needs no shift.
        entry = np.searchsorted(times, starts)
        before = np.concatenate([[0], times])[entry]
        beat = before - before % self.steps_per_beat
        return np.insert(np.stack([shifts[entry], beat - starts], axis=1), 0, 0, axis=0)

    def _crop(
        self, tokens: IntArray, starts: IntArray, length: int, bar_length: int, rng: Rng | None
    ) -> IntArray:
        start, offset = starts[0].tolist()
        dropout = None
        if rng is not None:
            # Tracks first: the same ones are dropped from whichever bar the crop begins at.
            tracks = rng.random(len(self.instruments))
            # One more bar for notes that sound after the last onset.
            skipped = rng.random(len(starts) + 1) < self.skip_bar_probability
            skipped[0] = False
            dropout = _Dropout(tracks, skipped, bar_length)
        stop, window = start, np.empty(0, np.int64)
        while len(window) < length and stop < len(tokens):
            # Half as many tokens again usually make up for what dropout removes.
            stop = start + max(2 * (stop - start), length * 3 // 2)
            segment = tokens[start:stop].astype(np.int64)
            window = self._reencode(segment, offset, dropout, complete=stop >= len(tokens))
        return window[:length]

    def _reencode(
        self, segment: IntArray, offset: int, dropout: _Dropout | None, *, complete: bool
    ) -> IntArray:
        """Encode a segment from time 0, without the offs of notes that began before it.

        An incomplete segment is cut before its last time, at which events may be missing.
        """
        times = self.times(segment) + offset
        last = times[-1:]
        voice, onset, release = self._notes(segment, times, int(last[0]))
        if dropout is not None:
            track, (draws, skipped, length) = voice // NUM_KEYS, dropout
            # Later bars are as the last one; if no onset would stay, all bars do.
            bars = np.arange(int(last[0]) // length + 1)
            skipped = skipped[np.minimum(bars, len(skipped) - 1)]
            skipped = skipped & ~skipped[onset // length].all()
            keep = ~skipped[onset // length]
            present = np.bincount(track[keep], minlength=len(draws)) > 0
            dropped = draws < self.drop_track_probability
            if dropped[present].all():  # the track with the highest draw stays
                dropped[np.argmax(np.where(present, draws, -1.0))] = False
            keep &= ~dropped[track]
            begins = np.append(0, np.cumsum(~skipped)) * length

            def shift(time: IntArray) -> IntArray:
                """Return times after the cuts; those within a skipped bar are that of the cut."""
                bar = time // length
                return begins[bar] + np.where(skipped[bar], 0, time % length)

            voice, onset, release = voice[keep], shift(onset[keep]), shift(release[keep])
            last = shift(last)
        events = self._sorted_events(voice, onset, release)
        if not complete:
            events = events[events < last * 2 * self._num_voices]
        return self._frame(events, end=complete)

    def _sorted_events(self, voice: IntArray, onset: IntArray, offset: IntArray) -> IntArray:
        """Return the note-ons and -offs of notes as ascending keys.

        The key of an event is 2 N time + voice, plus N for a note-on: by time, offs before ons.
        """
        num_voices = self._num_voices
        ons = onset * 2 * num_voices + num_voices + voice
        return np.sort(np.concatenate([offset * 2 * num_voices + voice, ons]))

    def _frame(self, events: IntArray, *, end: bool) -> IntArray:
        """Return sorted events as ids after BOS, and before EOS at the end of a piece.

        Where time passes, the longest shifts come first.
        """
        time, code = np.divmod(events, 2 * self._num_voices)
        before, shifts = np.append(0, time)[:-1], self.families["TimeShift"]
        # A shift counts from the start of the current beat; more than 24 ticks take several.
        distance = np.where(time > before, time - before + before % STEPS_PER_BEAT, 0)
        num_shifts = -(-distance // LONGEST_SHIFT)
        at = 1 + np.cumsum(num_shifts) + np.arange(len(events))
        tokens = np.full(1 + len(events) + int(num_shifts.sum()), shifts.stop - 1)
        tokens[0] = self.families["BOS"].start
        tokens[at] = (code + self._num_voices) % (2 * self._num_voices)
        passes = num_shifts > 0
        tokens[at[passes] - 1] = (distance[passes] - 1) % LONGEST_SHIFT + shifts.start
        return np.append(tokens, self.families["EOS"].start) if end else tokens

    @cached_property
    def _pitch_ranks(self) -> IntArray:
        """The key of each note-on and note-off, -1 for other ids and for drums. [V]"""
        keys = [np.arange(NUM_KEYS) * (not i.is_drum) - i.is_drum for i in self.instruments]
        others = np.full(len(self.vocabulary) - self.families["TimeShift"].start, -1)
        return np.concatenate([*keys, *keys, others])
