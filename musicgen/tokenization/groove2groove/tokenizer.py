"""Groove2Groove: several tracks as note-ons and -offs in 12ths of a beat (Cífka et al. 2020)."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from musicgen.midi import DEFAULT_VELOCITY, NOTE, TICKS_PER_BEAT, Score, Track, sort_notes
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.constraints import (
    Constraint,
    TargetParts,
    notes_of_each,
    target_parts,
)
from musicgen.tokenization.groove2groove.constraints import LimitedDurations, MaxNotes
from musicgen.tokenization.groove2groove.crops import GrooveAugmentation, GrooveCrops
from musicgen.tokenization.groove2groove.events import (
    LONGEST_SHIFT,
    NUM_KEYS,
    STEPS_PER_BEAT,
    NoteEvents,
    VoiceNotes,
)
from musicgen.tokenization.groove2groove.grammar import GrooveGrammar
from musicgen.tokenization.instruments import find_instrument, instruments_of
from musicgen.tokenization.overlaps import GridNotes, remove_overlaps
from musicgen.tokenization.quantization import nearest_bin, parse_bins
from musicgen.tokenization.quantization_report import QuantizationReport
from musicgen.tokenization.vocabulary import IntArray, number_tokens
from musicgen.tokenization.whole_bars import in_whole_bars
from musicgen.validation import check_float, check_int

DEFAULT_TRACKS: tuple[Mapping[str, Any], ...] = (
    {"name": "Bass", "program": 33},
    {"name": "Drums", "is_drum": True},
    {"name": "Guitar", "program": 27},
    {"name": "Piano", "program": 0},
    {"name": "Strings", "program": 48},
)


class Groove2Groove(Tokenizer):
    """`BOS`, then note-offs and note-ons, time shifts where time passes, `EOS`.

    `find_instrument` assigns the tracks of a Score to instruments; notes of tracks without one are
    dropped. Onsets and durations are rounded to 1/12 beat; the tempo is not encoded, and velocities
    are only if there are bins of them: then a `Velocity` follows each note-on.

    Args:
        tracks: mappings with the attributes of `Instrument`, of which only the name is required.
        max_beats: later onsets are dropped, notes that last longer are cut.
        max_note_beats, max_drum_beats: longer notes, and longer notes of drums, are cut, and the
            grammar closes them, so that no generated note hangs; None for no maximum.
        velocity_bins: lowest, highest and step; None: no Velocity tokens.
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
        }
        self.vocabulary, self.families = number_tokens(families)
        self._events = NoteEvents(self.families)
        self._max_durations = self._longest_notes().repeat(NUM_KEYS)  # of each voice, in ticks

    def _longest_notes(self) -> IntArray:
        """Return the maximum length of a note of each instrument, in ticks. [num_tracks]"""
        beats = []
        for instrument in self.instruments:
            longest = self.max_drum_beats if instrument.is_drum else self.max_note_beats
            beats.append(min(longest or self.max_beats, self.max_beats))
        return np.array(beats) * STEPS_PER_BEAT

    @cached_property
    def crops(self) -> GrooveCrops:
        return GrooveCrops(self._events)

    @cached_property
    def augmentation(self) -> GrooveAugmentation:
        return GrooveAugmentation(
            self,
            self.crops,
            self.max_transposition,
            self.drop_track_probability,
            self.skip_bar_probability,
        )

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
        return constraints

    def find_track(self, track: Track) -> int | None:
        return find_instrument(track, self.instruments)

    def encode_with_report(self, score: Score) -> tuple[IntArray, QuantizationReport]:
        bar_length = self.bar_length(score)
        report = in_whole_bars(score, STEPS_PER_BEAT, lambda signature: bar_length)
        report.end = self.max_beats * STEPS_PER_BEAT, f"beat {self.max_beats}"
        found = [self.find_track(track) for track in report.score.tracks]
        notes, instrument = report.numbered_notes(found, "notes of tracks without an instrument")
        report.round(notes["onset"], instrument)
        onset, duration, inside = report.notes_inside(notes)
        voice = (notes["pitch"] + instrument * NUM_KEYS)[inside]
        velocity = nearest_bin(notes["velocity"][inside], self.velocities)
        columns = GridNotes(voice, onset, duration, velocity)
        kept = remove_overlaps(columns, report)
        longest = self._max_durations[kept.voice]
        report.clip("notes longer than the maximum", kept.onset[kept.duration > longest])
        release = kept.onset + np.minimum(kept.duration, longest)
        notes_on_grid = VoiceNotes(kept.voice, kept.onset, release, kept.velocity)
        return self._events.tokens(notes_on_grid), report

    def decode(self, tokens: IntArray) -> Score:
        """Return all instruments in order, including empty ones; no tempo.

        Without Velocity tokens all velocities are equal. Notes that still sound at the end are
        closed there, after at least one grid step.
        """
        tokens = self.until_end(tokens)
        times = self.times(tokens)
        found = self._events.notes(tokens, times, int(times.max(initial=0)))
        notes = np.empty(len(found.voice), NOTE)
        step = TICKS_PER_BEAT // self.steps_per_beat
        notes["onset"] = found.onset * step
        notes["duration"] = np.maximum(found.release - found.onset, 1) * step
        notes["velocity"] = DEFAULT_VELOCITY
        if self.velocities:
            notes["velocity"] = np.array(self.velocities)[found.velocity]
        notes["pitch"] = found.key
        instrument = found.instrument
        tracks = [
            Track(each.name, each.program, each.is_drum, sort_notes(notes[instrument == i]))
            for i, each in enumerate(self.instruments)
        ]
        return Score(TICKS_PER_BEAT, tracks)

    def times(self, tokens: IntArray) -> IntArray:
        """Return the tick (1/12 beat) of each id; a shift has the time it leads to. [L] -> [L]."""
        return self._events.times(tokens)

    def notes_at_once(self, tokens: IntArray) -> list[IntArray]:
        """Return, for each instrument, how many of its notes sound as each begins. Ids [L]."""
        num_voices = self._events.num_voices
        events = tokens[tokens < 2 * num_voices].astype(np.int64)
        is_off, voice = np.divmod(events, num_voices)
        counts = []
        for i in range(len(self.instruments)):
            is_release = is_off[voice // NUM_KEYS == i]
            sounding = np.cumsum(np.where(is_release, -1, 1))
            counts.append(sounding[is_release == 0])
        return counts

    @cached_property
    def pitch_ranks(self) -> IntArray:
        """The key of each note-on and note-off, -1 for other ids and for drums. [V]"""
        of_voices = []
        for instrument in self.instruments:
            keys = np.arange(NUM_KEYS)
            of_voices.append(np.full_like(keys, -1) if instrument.is_drum else keys)
        num_others = len(self.vocabulary) - self.families["TimeShift"].start
        return np.concatenate([*of_voices, *of_voices, np.full(num_others, -1)])
