"""Groove2Groove: several tracks as note-ons and -offs in 12ths of a beat (Cífka et al. 2020)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from musicgen.midi import DEFAULT_VELOCITY, NOTE, TICKS_PER_BEAT, Score, Track, sort_notes
from musicgen.midi.key import first_signature
from musicgen.tokenization.augmentation import Augmentation, Crops, Rng
from musicgen.tokenization.bars import KEYS, first_key, key_index
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.closing import asked_tonic
from musicgen.tokenization.constraints import Constraint, TargetParts, notes_of_each, target_parts
from musicgen.tokenization.groove_grammar import (
    NUM_KEYS,
    STEPS_PER_BEAT,
    GrooveGrammar,
    LastChordOfGroove,
    LimitedDurations,
    MaxNotes,
    last_voices,
)
from musicgen.tokenization.instruments import find_instrument, instruments_of
from musicgen.tokenization.quantization import QuantizationReport, nearest_bin, parse_bins
from musicgen.tokenization.vocabulary import IntArray, number_tokens, within
from musicgen.tokenization.whole_bars import in_whole_bars
from musicgen.validation import check_bool, check_float, check_int

LONGEST_SHIFT = 24
"""In ticks. A shift (b, t) goes to tick t of the b-th beat after the current one."""

DEFAULT_TRACKS: tuple[Mapping[str, Any], ...] = (
    {"name": "Bass", "program": 33},
    {"name": "Drums", "is_drum": True},
    {"name": "Guitar", "program": 27},
    {"name": "Piano", "program": 0},
    {"name": "Strings", "program": 48},
)


class Groove2Groove(Tokenizer):
    """`BOS`, the key, then note-offs and note-ons, time shifts where time passes, `EOS`.

    `find_instrument` assigns the tracks of a Score to instruments; notes of tracks without one are
    dropped. Onsets and durations are rounded to 1/12 beat; the tempo is not encoded, and velocities
    are only if there are bins of them: then a `Velocity` follows each note-on.

    A voice is a key of an instrument: 128 instrument + key.

    Args:
        tracks: mappings with the attributes of `Instrument`; only the name is required.
        max_beats: later onsets are dropped, notes that last longer are cut.
        max_note_beats, max_drum_beats: longer notes, and longer notes of drums, are cut, and the
            grammar closes them, so that no generated note hangs; None for no maximum.
        velocity_bins: lowest, highest and step; None: no Velocity tokens.
        keys: whether pieces have a key, major or minor: that of the score's first signature, else
            that is found from its notes.
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
        velocity_bins: Sequence[int] | None = None,
        keys: bool = False,
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
        self.tracks = [
            {**instrument._asdict(), "takes": [list(programs) for programs in instrument.takes]}
            for instrument in self.instruments
        ]
        self.max_beats = max_beats
        self.max_note_beats, self.max_drum_beats = max_note_beats, max_drum_beats
        self.velocity_bins = velocity_bins
        self.velocities = parse_bins("velocity_bins", velocity_bins, 1, 127)
        check_bool("keys", keys)
        self.keys = keys
        self.max_transposition = max_transposition
        self.drop_track_probability = drop_track_probability
        self.skip_bar_probability = skip_bar_probability
        voices = [f"{each.name}_{key}" for each in self.instruments for key in range(NUM_KEYS)]
        shifts = [divmod(ticks, STEPS_PER_BEAT) for ticks in range(1, LONGEST_SHIFT + 1)]
        families = {
            "NoteOn": [f"NoteOn_{voice}" for voice in voices],
            "NoteOff": [f"NoteOff_{voice}" for voice in voices],
            "TimeShift": [f"TimeShift_{beats}_{tick}" for beats, tick in shifts],
            "EOS": ["EOS"],
            "BOS": ["BOS"],
            "Velocity": [f"Velocity_{velocity}" for velocity in self.velocities],
            "Key": [f"Key_{key}" for key in KEYS] if keys else [],
        }
        self.vocabulary, self.families = number_tokens(families)
        self.num_voices = len(voices)
        longest = []  # note of each instrument, in beats
        for instrument in self.instruments:
            beats = max_drum_beats if instrument.is_drum else max_note_beats
            longest.append(min(beats or max_beats, max_beats))
        self._max_durations = np.repeat(longest, NUM_KEYS) * STEPS_PER_BEAT  # by voice, in ticks

    @cached_property
    def crops(self) -> GrooveCrops:
        return GrooveCrops(self)

    @cached_property
    def augmentation(self) -> GrooveAugmentation:
        return GrooveAugmentation(self)

    def grammar(self) -> GrooveGrammar:
        limit = self.max_beats * STEPS_PER_BEAT
        return GrooveGrammar(self.vocabulary, self.families, self._max_durations, limit)

    def constraints(self, request: Any, prompts: Sequence[Any]) -> list[Constraint]:
        grammar = self.grammar()
        # Only the file's instruments.
        targets = target_parts(grammar.num_instruments, [prompt.targets for prompt in prompts])
        constraints: list[Constraint] = [TargetParts(grammar, "NoteOn", targets)]
        if max_notes := request.sampling.max_notes:  # prompts may have more
            constraints.append(MaxNotes(grammar, notes_of_each(grammar, max_notes)))
        if request.decoding.limit_durations:
            longest = np.zeros((len(prompts), grammar.num_instruments), np.int64)
            for of_prompt, prompt in zip(longest, prompts, strict=True):
                for number, track in enumerate(prompt.score.tracks):
                    of_prompt[number] = track.notes["duration"].max(initial=0)
            longest //= TICKS_PER_BEAT // STEPS_PER_BEAT
            constraints.append(LimitedDurations(grammar, longest))
        if request.piece.is_closed or request.piece.tonic is not None:
            rests = [asked_tonic(request, prompt, prompt.bar_length) for prompt in prompts]
            thirds = np.array([prompt.bar_length // 3 for prompt in prompts])
            voices = last_voices(self.instruments, rests, targets)
            constraints.insert(0, LastChordOfGroove(grammar, rests, thirds, voices))
        return constraints

    def find_track(self, track: Track) -> int | None:
        return find_instrument(track, self.instruments)

    def encode_with_report(self, score: Score) -> tuple[IntArray, QuantizationReport]:
        bar_length = self.bar_length(score)
        report = in_whole_bars(score, STEPS_PER_BEAT, lambda signature: bar_length)
        report.end = self.max_beats * STEPS_PER_BEAT, f"beat {self.max_beats}"
        found = self.find_tracks(report.score.tracks)
        notes, instrument, track = report.numbered_notes(
            found, "notes of tracks without an instrument"
        )
        report.round(notes["onset"], instrument)
        onset, duration, inside = report.notes_inside(notes)
        voice = (notes["pitch"] + instrument * NUM_KEYS)[inside]
        voice, onset, duration, velocity = report.remove_overlaps(
            voice,
            onset,
            duration,
            nearest_bin(notes["velocity"][inside], self.velocities),
            track[inside],
        )
        longest = self._max_durations[voice]
        report.clip("notes longer than the maximum", onset[duration > longest])
        release = onset + np.minimum(duration, longest)
        tokens = self.tokens_of(np.stack([voice, onset, release, velocity]))
        if self.keys:
            key = first_signature(score)
            tokens = np.insert(tokens, 1, self.families["Key"][key_index(key)])
        return tokens, report

    def decode(self, tokens: IntArray) -> Score:
        """Return all instruments in order, including empty ones, and the key; no tempo.

        Without Velocity tokens all velocities are equal. Notes that still sound at the end are
        closed there, after at least one grid step.
        """
        tokens = self.until_end(tokens)
        times = self.times(tokens)
        voice, onset, release, velocity = self.notes_of(tokens, times, int(times.max(initial=0)))
        instrument, key = np.divmod(voice, NUM_KEYS)
        notes = np.empty(len(voice), NOTE)
        step = TICKS_PER_BEAT // self.steps_per_beat
        notes["onset"] = onset * step
        notes["duration"] = np.maximum(release - onset, 1) * step
        notes["pitch"] = key
        notes["velocity"] = DEFAULT_VELOCITY
        if self.velocities:
            notes["velocity"] = np.array(self.velocities)[velocity]
        tracks = [
            Track(each.name, each.program, each.is_drum, sort_notes(notes[instrument == i]))
            for i, each in enumerate(self.instruments)
        ]
        return Score(TICKS_PER_BEAT, tracks, key_signatures=first_key(tokens, self.families["Key"]))

    def times(self, tokens: IntArray) -> IntArray:
        """Return the tick (1/12 beat) of each id; a shift has the time it leads to. [L] -> [L]."""
        is_shift = within(tokens, self.families["TimeShift"])
        times = np.concatenate([[0], self.shift_times(tokens[is_shift])])
        return times[np.cumsum(is_shift)]

    def shift_times(self, shifts: IntArray) -> IntArray:
        """Return the times that consecutive shifts lead to, from 0. Ids [N] -> ticks [N]."""
        ticks = shifts.astype(np.int64) - self.families["TimeShift"].start + 1
        beats, tick = np.divmod(ticks, STEPS_PER_BEAT)
        return np.cumsum(beats) * STEPS_PER_BEAT + tick

    def notes_of(self, tokens: IntArray, times: IntArray, end: int) -> IntArray:
        """Return voice, onset, release and velocity of the notes of ids, sorted by voice. [4, N]

        A note lasts until the next event of its voice, or until `end` if there is none. A velocity
        is the index of its token in the family; a note-on without its velocity has the lowest one.

        Args:
            tokens, times: the ids and their ticks. [L]
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
            ids = self.families["Velocity"]
            following = np.append(tokens, -1)[events[order][on] + 1]
            velocity = np.where(within(following, ids), following - ids.start, 0)
        return np.stack([voice[on], time[on], release[on], velocity])

    def tokens_of(self, notes: IntArray, before: int | None = None) -> IntArray:
        """Return the ids of notes, after BOS. -> [L]

        At each time note-offs come before note-ons, both by voice. Where time passes, the longest
        shifts come first.

        Args:
            notes: see `notes_of`. [4, N]
            before: an incomplete piece has only the events before this tick, and no EOS; None: all.
        """
        voice, onset, release, strength = notes
        num_voices, num_velocities = self.num_voices, max(1, len(self.velocities))
        # An event as a number that sorts it: 2 N time + voice, plus N for a note-on; with the
        # velocity of a note-on as the last digit.
        ons = onset * 2 * num_voices + num_voices + voice
        offs = release * 2 * num_voices + voice
        events = np.concatenate([offs * num_velocities, ons * num_velocities + strength])
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
        tokens[at[has_velocity] + 1] = velocity[has_velocity] + self.families["Velocity"].start
        passes = num_shifts > 0
        tokens[at[passes] - 1] = (distance[passes] - 1) % LONGEST_SHIFT + shifts.start
        return np.append(tokens, self.families["EOS"].start) if before is None else tokens

    def notes_at_once(self, tokens: IntArray) -> list[IntArray]:
        """Return, by instrument, how many of its notes sound as each begins. Ids [L]."""
        events = tokens[tokens < 2 * self.num_voices].astype(np.int64)
        is_off, voice = np.divmod(events, self.num_voices)
        counts = []
        for i in range(len(self.instruments)):
            is_release = is_off[voice // NUM_KEYS == i]
            sounding = np.cumsum(np.where(is_release, -1, 1))
            counts.append(sounding[is_release == 0])
        return counts

    @cached_property
    def pitch_ranks(self) -> IntArray:
        """The key of each note-on and note-off, -1 for other ids and for drums. [V]"""
        keys = np.arange(NUM_KEYS)
        of_instruments = [0 * keys - 1 if x.is_drum else keys for x in self.instruments]
        ranks = np.full(len(self.vocabulary), -1)
        ranks[: 2 * self.num_voices] = np.tile(np.concatenate(of_instruments), 2)
        return ranks


Change = Callable[[IntArray, int], tuple[IntArray, int]]
"""Changes notes [4, N] (`Groove2Groove.notes_of`) and the last tick of a crop."""


class GrooveCrops(Crops):
    """Crops of events, whose times count from the first bar of the crop."""

    def __init__(self, tokenizer: Groove2Groove) -> None:
        self.tokenizer = tokenizer

    def starts(self, tokens: IntArray, *, bar_length: int) -> IntArray:
        tokenizer = self.tokenizer
        shifts = np.flatnonzero(within(tokens, tokenizer.families["TimeShift"]))
        ons = np.flatnonzero(tokens < tokenizer.num_voices)
        if not len(ons):
            return np.empty((0, 2), np.int64)
        times = tokenizer.shift_times(tokens[shifts])
        last_onset = int(tokenizer.times(tokens)[ons[-1]])
        bars = bar_length * np.arange(1, last_onset // bar_length + 1)
        # The first shift into a bar counts from the beat before it. The first bar needs no shift.
        entry = np.searchsorted(times, bars)
        before = np.concatenate([[0], times])[entry]
        beat = before - before % STEPS_PER_BEAT
        return np.insert(np.stack([shifts[entry], beat - bars], axis=1), 0, 0, axis=0)

    def crop(
        self, tokens: IntArray, starts: IntArray, length: int, change: Change | None = None
    ) -> IntArray:
        """Return the crop from a bar on, without the offs of notes that began before it.

        Args:
            change: changes the notes of the crop.
        """
        if not len(starts):
            return super().crop(tokens, starts, length)
        start, offset = starts[0].tolist()
        stop, window = start, np.empty(0, np.int64)
        while len(window) < length and stop < len(tokens):
            # Half as many tokens again usually make up for what a change removes.
            stop = start + max(2 * (stop - start), length * 3 // 2)
            segment = tokens[start:stop].astype(np.int64)
            times = self.tokenizer.times(segment) + offset
            last = int(times[-1])
            notes = self.tokenizer.notes_of(segment, times, last)
            if change is not None:
                notes, last = change(notes, last)
            # At the last time of an incomplete segment, events may be missing.
            window = self.tokenizer.tokens_of(notes, None if stop >= len(tokens) else last)
        key = tokens[1:2][within(tokens[1:2], self.tokenizer.families["Key"])]
        return np.insert(window, 1, key)[:length]


class GrooveAugmentation(Augmentation):
    """Random crops with fewer tracks and bars."""

    crops: GrooveCrops

    def __init__(self, tokenizer: Groove2Groove) -> None:
        super().__init__(tokenizer, tokenizer.crops, tokenizer.max_transposition)
        self.num_tracks = len(tokenizer.instruments)
        self.drop_track_probability = tokenizer.drop_track_probability
        self.skip_bar_probability = tokenizer.skip_bar_probability

    def changed_crop(
        self, tokens: IntArray, starts: IntArray, length: int, bar_length: int, rng: Rng
    ) -> IntArray:
        # Tracks first: the same ones are dropped from whichever bar the crop begins at.
        draws = rng.random(self.num_tracks)
        # One more bar for notes that sound after the last onset.
        skips = rng.random(len(starts) + 1) < self.skip_bar_probability
        skips[0] = False

        def change(notes: IntArray, last: int) -> tuple[IntArray, int]:
            bar_of_onset = notes[1] // bar_length
            # Later bars are as the last one; if no onset would stay, all bars do.
            skipped = skips[np.minimum(np.arange(last // bar_length + 1), len(starts))]
            skipped = skipped & ~skipped[bar_of_onset].all()
            begins = np.append(0, np.cumsum(~skipped)) * bar_length

            def shift(time: IntArray) -> IntArray:
                """Return times after the cuts; those within a skipped bar are that of the cut."""
                bar = time // bar_length
                return begins[bar] + np.where(skipped[bar], 0, time % bar_length)

            voice, onset, release, velocity = notes[:, ~skipped[bar_of_onset]]
            track, dropped = voice // NUM_KEYS, draws < self.drop_track_probability
            is_present = np.bincount(track, minlength=len(draws)) > 0
            if dropped[is_present].all():  # the track with the highest draw stays
                dropped[np.argmax(np.where(is_present, draws, -1.0))] = False
            changed = np.stack([voice, shift(onset), shift(release), velocity])
            return changed[:, ~dropped[track]], int(shift(np.array(last)))

        return self.crops.crop(tokens, starts, length, change)
