"""Several tracks as note-ons and note-offs in 12ths of a beat (Cífka et al. 2020)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from musicgen.errors import UserError
from musicgen.midi import NOTE, Score, Track, sort_notes
from musicgen.tokenization.augmentation import Thinning
from musicgen.tokenization.base import (
    TICKS_PER_BEAT,
    EncodingReport,
    IntArray,
    Tokenizer,
)
from musicgen.tokenization.groove2groove_grammar import GrooveGrammar
from musicgen.tokenization.instruments import DEFAULT_TRACKS, instruments_of, place
from musicgen.tokenization.note_events import LONGEST_SHIFT, STEPS_PER_BEAT, NoteEvents
from musicgen.tokenization.quantise import GridNotes, separate, to_grid
from musicgen.tokenization.vocabulary import vocabulary_of, within

NUM_KEYS = 128
VELOCITY = 80
"""Of every decoded note: the vocabulary holds no velocities."""


class Groove2Groove(Tokenizer):
    """`BOS`, then note offs and note ons, a time shift wherever time passes, `EOS`.

    A Score's track goes to the instrument that `place` finds by name, drum flag or General MIDI
    family; the notes of what finds none are dropped. Onsets and durations are rounded to 1/12
    beat. Velocity and tempo are not encoded.

    Args:
        tracks: the instruments, as mappings of what `Instrument` has; all but name is optional.
        max_beats: onsets beyond are dropped, notes lasting beyond are cut.
        max_transposition: training crops are shifted by up to so many semitones, drums excepted.
        drop_track_probability: of leaving out each track of a training crop; one always stays.
        skip_bar_probability: of leaving out each bar of a training crop, its first one excepted.

    Raises:
        UserError: settings that contradict each other, or name unknown properties of a track.
    """

    name: ClassVar[str] = "groove2groove"
    steps_per_beat = STEPS_PER_BEAT

    def __init__(
        self,
        *,
        tracks: Sequence[Mapping[str, Any]] = DEFAULT_TRACKS,
        max_beats: int = 16384,
        max_transposition: int = 5,
        drop_track_probability: float = 0.1,
        skip_bar_probability: float = 0.05,
    ) -> None:
        probabilities = (drop_track_probability, skip_bar_probability)
        if max_beats < 1 or max_transposition < 0 or not all(0 <= p <= 1 for p in probabilities):
            raise UserError(
                f"{max_beats=}, {max_transposition=}, {drop_track_probability=}, "
                f"{skip_bar_probability=}; give at least one beat, 0 or more semitones, and "
                "probabilities within 0 and 1"
            )
        self.instruments = instruments_of(tracks)
        self.max_beats = max_beats
        self.max_transposition = max_transposition
        self.drop_track_probability = drop_track_probability
        self.skip_bar_probability = skip_bar_probability
        voices = [f"{i.name}_{key}" for i in self.instruments for key in range(NUM_KEYS)]
        shifts = [divmod(ticks, STEPS_PER_BEAT) for ticks in range(1, LONGEST_SHIFT + 1)]
        self.vocabulary, self.families = vocabulary_of(
            {
                "NoteOn": [f"NoteOn_{voice}" for voice in voices],
                "NoteOff": [f"NoteOff_{voice}" for voice in voices],
                "TimeShift": [f"TimeShift_{beats}_{tick}" for beats, tick in shifts],
                "EOS": ["EOS"],
                "BOS": ["BOS"],
            }
        )
        self.events = NoteEvents(len(voices))

    def settings(self) -> dict[str, Any]:
        return {
            "tracks": [
                {**own._asdict(), "takes": [list(programs) for programs in own.takes]}
                for own in self.instruments
            ],
            "max_beats": self.max_beats,
            "max_transposition": self.max_transposition,
            "drop_track_probability": self.drop_track_probability,
            "skip_bar_probability": self.skip_bar_probability,
        }

    def start(self) -> IntArray:
        return np.array([self.vocabulary.id("BOS")])

    def bar_length(self, score: Score) -> int:
        """Ticks in a bar of the first time signature; 48 without one."""
        if not score.time_signatures:
            return 4 * self.steps_per_beat
        _, numerator, denominator = score.time_signatures[0]
        return max(1, 4 * self.steps_per_beat * numerator // denominator)

    def grammar(self) -> GrooveGrammar:
        return GrooveGrammar(self)

    def encode_with_report(self, score: Score) -> tuple[IntArray, EncodingReport]:
        report = EncodingReport(notes_read=score.num_notes)
        parts = [np.empty(0, NOTE)]
        voices = [np.empty(0, np.int64)]
        for track in score.tracks:
            index = place(track, self.instruments)
            if index is None:
                report.drop("notes of tracks without an instrument", len(track.notes))
                continue
            notes = track.notes
            in_range = (notes["pitch"] >= 0) & (notes["pitch"] < NUM_KEYS)
            report.drop("notes outside 0-127", len(notes) - int(in_range.sum()))
            parts.append(notes[in_range])
            voices.append(notes["pitch"][in_range] + index * NUM_KEYS)
        notes, voice = np.concatenate(parts), np.concatenate(voices)

        limit = self.max_beats * self.steps_per_beat
        onset = to_grid(notes["onset"], self.steps_per_beat, score.ticks_per_beat)
        duration = to_grid(notes["duration"], self.steps_per_beat, score.ticks_per_beat)
        inside = (onset >= 0) & (onset < limit)
        report.drop(f"notes beyond beat {self.max_beats}", len(onset) - int(inside.sum()))
        onset, duration = onset[inside], duration[inside]
        too_long = onset + duration > limit
        report.clip(f"notes lasting beyond beat {self.max_beats}", int(too_long.sum()))
        duration = np.clip(duration, 1, limit - onset)

        columns = GridNotes(voice[inside], onset, duration, notes["velocity"][inside])
        kept, merged, shortened = separate(columns)
        report.drop("notes doubling another", merged)
        report.clip("notes struck again while sounding", shortened)
        report.notes_kept = len(kept.onset)
        events = self.events.sort(kept.voice, kept.onset, kept.onset + kept.duration)
        return self._framed(events, whole=True), report

    def decode(self, tokens: IntArray) -> Score:
        """All instruments, also the empty ones, in their order; no tempo; constant velocity.

        Notes that still sound at the end are closed there, after at least one grid step.
        """
        tokens = self.until_end(tokens)
        times = self.times(tokens)
        end = int(times[-1]) if len(times) else 0
        voice, onset, offset = self.events.notes(tokens, times, end)
        notes = np.empty(len(voice), NOTE)
        step = TICKS_PER_BEAT // self.steps_per_beat
        notes["onset"] = onset * step
        notes["duration"] = np.maximum(offset - onset, 1) * step
        notes["velocity"] = VELOCITY
        track, notes["pitch"] = np.divmod(voice, NUM_KEYS)
        return Score(
            TICKS_PER_BEAT,
            [
                Track(own.name, own.program, own.is_drum, sort_notes(notes[track == index]))
                for index, own in enumerate(self.instruments)
            ],
        )

    def times(self, tokens: IntArray) -> IntArray:
        """Ticks of 1/12 beat from the first bar; a shift has the time it leads to. [L] -> [L]."""
        is_shift = within(tokens, self.families["TimeShift"])
        times = np.concatenate([[0], self.events.shift_times(tokens[is_shift])])
        return times[np.cumsum(is_shift)]

    def bar_starts(self, tokens: IntArray, bar_length: int) -> IntArray:
        end = int(self.times(tokens).max(initial=0))
        return np.arange(0, end + 1, bar_length)

    def crop_places(self, tokens: IntArray, *, bar_length: int) -> IntArray:
        shifts = np.flatnonzero(within(tokens, self.families["TimeShift"]))
        ons = np.flatnonzero(tokens < self.events.num_voices)
        if not len(ons):
            return np.empty((0, 2), np.int64)
        times = self.events.shift_times(tokens[shifts])
        last_shift = int(np.searchsorted(shifts, ons[-1])) - 1
        last_onset = int(times[last_shift]) if last_shift >= 0 else 0
        starts = bar_length * np.arange(1, last_onset // bar_length + 1)
        # The first shift that leads into each bar counts from the beat before it; a piece's first
        # bar begins without one.
        entry = np.searchsorted(times, starts)
        before = np.concatenate([[0], times])[entry]
        beat = before - before % self.steps_per_beat
        first = np.zeros((1, 2), np.int64)
        return np.concatenate([first, np.stack([shifts[entry], beat - starts], axis=1)])

    def sample_window(
        self,
        tokens: IntArray,
        rng: np.random.Generator,
        length: int,
        *,
        bar_length: int,
        augment: bool,
        places: IntArray | None = None,
    ) -> IntArray:
        if places is None:
            places = self.crop_places(tokens, bar_length=bar_length)
        if not len(places):
            return tokens[:length].astype(np.int64)
        bar = int(rng.integers(len(places)))
        first, origin = places[bar].tolist()
        thinning = self._draw_thinning(rng, len(places) - bar, bar_length) if augment else None

        stop, window = first, np.empty(0, np.int64)
        while len(window) < length and stop < len(tokens):
            # Half as many again usually make up for what is thinned out.
            stop = first + max(2 * (stop - first), length * 3 // 2)
            segment = tokens[first:stop].astype(np.int64)
            window = self._crop(segment, origin, thinning, whole=stop >= len(tokens))
        window = window[:length]
        return self._transposed(window, rng) if augment else window

    def _crop(
        self, segment: IntArray, origin: int, thinning: Thinning | None, *, whole: bool
    ) -> IntArray:
        """A segment encoded anew from time 0: without the offs of notes begun before it.

        If the segment is not whole, it ends before its last time, which may lack events.
        """
        is_shift = within(segment, self.families["TimeShift"])
        shift_times = self.events.shift_times(segment[is_shift]) + origin
        times = np.concatenate([[0], shift_times])[np.cumsum(is_shift)]
        horizon = times[-1:]
        voice, onset, offset = self.events.notes(segment, times, int(horizon[0]))
        if thinning is not None:
            thinning = thinning.until(int(times[-1])).spare_bars(onset)
            keep = thinning.keep(voice // NUM_KEYS, onset)
            voice, onset, offset = voice[keep], thinning.move(onset[keep]), offset[keep]
            offset, horizon = thinning.move(offset), thinning.move(horizon)
        events = self.events.sort(voice, onset, offset)
        if not whole:
            events = events[events < horizon * 2 * self.events.num_voices]
        return self._framed(events, whole=whole)

    def _framed(self, events: IntArray, *, whole: bool) -> IntArray:
        """Sorted events as ids after BOS, and before EOS if that is the whole piece."""
        tokens = np.concatenate([[self.families["BOS"].start], self.events.serialise(events)])
        return np.append(tokens, self.families["EOS"].start) if whole else tokens

    def _draw_thinning(self, rng: np.random.Generator, num_bars: int, bar_length: int) -> Thinning:
        # One more for what sounds on after the last onset.
        skipped = rng.random(num_bars + 1) < self.skip_bar_probability
        skipped[0] = False
        draws = rng.random(len(self.instruments))
        return Thinning(draws < self.drop_track_probability, draws, skipped, bar_length)

    def _transposed(self, window: IntArray, rng: np.random.Generator) -> IntArray:
        """All notes but the drums', moved by one random interval that keeps them in range."""
        melodic = np.array([not instrument.is_drum for instrument in self.instruments])
        voice = window % self.events.num_voices
        moves = (window < 2 * self.events.num_voices) & melodic[voice // NUM_KEYS]
        pitch = voice[moves] % NUM_KEYS
        down = up = self.max_transposition
        if len(pitch):
            down, up = min(down, int(pitch.min())), min(up, NUM_KEYS - 1 - int(pitch.max()))
        window[moves] += rng.integers(-down, up + 1)
        return window
