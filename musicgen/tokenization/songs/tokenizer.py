"""Songs: bars of parts, of which the first ones in each bar can be kept."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from musicgen.errors import ParameterError
from musicgen.midi import TICKS_PER_BEAT, Score, Track
from musicgen.tokenization.bar_constraints import bar_constraints
from musicgen.tokenization.bars import FIFTHS, Events, InBars, sorted_tokens
from musicgen.tokenization.constraints import (
    Constraint,
    TargetParts,
    notes_of_each,
    target_parts,
)
from musicgen.tokenization.crops import CropsWithHeader
from musicgen.tokenization.instruments import find_by_words, instruments_of
from musicgen.tokenization.overlaps import GridNotes, remove_overlaps
from musicgen.tokenization.played_rhythm import printed_rhythm
from musicgen.tokenization.quantization import find_changes, nearest_bin
from musicgen.tokenization.quantization_report import QuantizationReport
from musicgen.tokenization.songs.constraints import (
    KeptSongParts,
    MaxNotesOfParts,
    SongsChords,
    tonic_chord,
)
from musicgen.tokenization.songs.grammar import SongsGrammar
from musicgen.tokenization.songs.part_order import MAX_PARTS, SongsPartOrder, key_of
from musicgen.tokenization.vocabulary import IntArray
from musicgen.validation import check_float

POSITIONS_PER_BEAT = 12
# In positions: the printed values with dots, doubled dots and triplets; then ties.
DURATIONS = (
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15, 16, 18, 20, 21, 24, 27, 28, 30, 32, 33,
    36, 40, 42, 45, 48, 54, 60, 66, 72, 84, 96, 108, 120, 144, 168, 192,
)  # fmt: skip
NUM_PITCHES = 128  # MIDI pitches: a voice of `GridNotes` is 128 part + pitch


class _Changes(NamedTuple):
    """Changes of a value: the grid step or the bar of each, and the index of the value. [N]"""

    at: IntArray
    value: IntArray


class Songs(InBars):
    """Bars: time signature; key and tempo where they change; then part after part; EOS at the end.

        Bar_3/4 Key_-3 Tempo_95 Part_Chords Beat_0 Chord_C_m Part_Voice Beat_0 Pitch_60 Duration_12
            … Part_Piano Beat_0 Pitch_48 Duration_24 Pitch_55 Duration_24 Beat_12 …

    A grid step is a twelfth of a quarter. Onsets and ends are rounded to steps, durations, which
    may pass bar lines, and tempi to the nearest by ratio. A part has each pitch once at a time.
    Drums have no durations. The key, in fifths, is the score's signature, else found from its
    notes. Keys and tempi are of whole bars, the last in each; chords come from markers.

    Pieces are encoded with the chords, where they change, as the first part, and then the others in
    the order of `parts`. In training crops other parts may lead, in all of their bars, from which a
    model learns to write the chords and the other parts to them.

    Args:
        parts: name, program and drum flag of each, the programs that it takes, and words in the
            names of tracks that it takes, see `find_by_words`.
        time_signatures: those of the vocabulary, see `TimeSignatures`.
        pitch_range: lowest and highest MIDI pitch.
        velocity_bins: lowest, highest and step; None: no Velocity tokens.
        tempo_bins: lowest and highest in quarters a minute, and how many at equal ratios; None: no
            Tempo tokens.
        chords: whether the vocabulary has Chord tokens, and a part of them.
        max_bars: maximum number of bars; later events are dropped.
        max_transposition: training crops are shifted by up to this many semitones up or down.
        lead_probability: share of the crops in which any part that they have leads, or in half
            of these any set of parts, chords among them.
    """

    name: ClassVar[str] = "songs"
    note_families = ("Pitch", "Drum")
    steps_per_beat = POSITIONS_PER_BEAT
    drums = range(27, 88)  # General MIDI 2
    durations = np.array(DURATIONS) * (TICKS_PER_BEAT // POSITIONS_PER_BEAT)

    def __init__(
        self,
        *,
        parts: Sequence[Mapping[str, Any]],
        time_signatures: Sequence[str],
        pitch_range: Sequence[int] = (21, 108),
        velocity_bins: Sequence[int] | None = None,
        tempo_bins: Sequence[int] | None = (30, 240, 37),
        chords: bool = True,
        max_bars: int = 4096,
        max_transposition: int = 6,
        lead_probability: float = 0,
    ) -> None:
        super().__init__(
            time_signatures,
            pitch_range,
            velocity_bins,
            tempo_bins,
            chords,
            max_bars,
            max_transposition,
        )
        check_float("lead_probability", lead_probability, maximum=1)
        self.lead_probability = lead_probability
        self.parts = [dict(part) for part in parts]
        self._words = [part.get("words", ()) for part in self.parts]
        self.instruments = instruments_of(
            [{name: part[name] for name in part if name != "words"} for part in self.parts]
        )
        self._is_drum = np.array([part.is_drum for part in self.instruments])
        if len(self.parts) + chords > MAX_PARTS:
            raise ParameterError("parts", len(self.parts), f"expected up to {MAX_PARTS - chords}")
        self.tempi = [] if tempo_bins is None else _equal_ratios(tempo_bins)
        self.header = ("Key", "Tempo")
        part_names = [part.name for part in self.instruments]
        if chords:
            self.header = ("Key", "Tempo", "Part", "Beat", "Chord")
            part_names.append("Chords")
        self.number_tokens(
            ("Beat", "Key", "Tempo", "Chord", "Part", "Pitch", "Drum", "Velocity", "Duration"),
            Key=FIFTHS,
            Part=part_names,
            Drum=self.drums,
            Duration=DURATIONS,
        )

    @cached_property
    def crops(self) -> CropsWithHeader:
        return CropsWithHeader(self.families, self.header)

    @cached_property
    def part_order(self) -> SongsPartOrder:
        return SongsPartOrder(self, self._words, self.lead_probability)

    def grammar(self) -> SongsGrammar:
        return SongsGrammar(self)

    def constraints(self, request: Any, prompts: Sequence[Any]) -> list[Constraint]:
        grammar = self.grammar()
        targets = target_parts(len(grammar.is_drum), [prompt.targets for prompt in prompts])
        targets |= grammar.is_chords
        own: list[Constraint] = [TargetParts(grammar, "Part", targets)]
        is_whole = request.piece.is_whole_piece
        if is_whole:
            conditioning = [prompt.kept.conditioning.ids for prompt in prompts]
            own = [KeptSongParts(grammar, conditioning, targets)]
        if self.chords:
            asked = [request.progression(prompt) for prompt in prompts]
            if request.ends_on_tonic:
                asked = [tonic_chord(prompt, request.end_time(prompt)) for prompt in prompts]
            own.append(SongsChords(grammar, asked, targets, always_chooses=is_whole))
        if max_notes := request.sampling.max_notes:
            own.append(MaxNotesOfParts(grammar, notes_of_each(grammar, max_notes), targets))
        return bar_constraints(grammar, request, prompts, self.pitches, own)

    def find_track(self, track: Track) -> int | None:
        return find_by_words(track, self.instruments, self._words)

    def normalise_rhythm(self, score: Score) -> Score:
        return printed_rhythm(score)

    def encode_with_report(self, score: Score) -> tuple[IntArray, QuantizationReport]:
        report, lines, signatures = self.in_bars(score)
        notes = self._read_notes(report)
        chord_step, chord = self.chord_changes(report)
        keys = self._key_changes(report, lines)
        tempo_step, tempo = self.tempi_inside(report, by_ratio=True)
        tempi = _Changes(*find_changes(_bar_of(tempo_step, lines), tempo))

        bars = [_bar_of(notes.onset, lines), _bar_of(chord_step, lines), keys.at, tempi.at]
        num_bars = int(np.concatenate(bars).max(initial=-1)) + 1
        if num_bars and not len(keys.value):
            fifths = key_of(report.score).fifths
            keys = _Changes(np.zeros(1, np.int64), np.array([_key_index(fifths)]))

        first = {name: ids.start for name, ids in self.families.items()}
        # Keys: bar, place in the bar, grid step, and place among the events there.
        kinds = [
            Events((np.arange(num_bars), 0, 0, 0), [first["Bar"] + signatures[:num_bars]]),
            Events((keys.at, 1, 0, 0), [first["Key"] + keys.value]),
            Events((tempi.at, 2, 0, 0), [first["Tempo"] + tempi.value]),
            *self._chord_events(_Changes(chord_step, chord), lines),
            *self._part_events(notes, lines),
        ]
        return np.append(sorted_tokens(kinds), first["EOS"]), report

    def _chord_events(self, chords: _Changes, lines: IntArray) -> list[Events]:
        """Return the events of the part of chords, the third in its bars."""
        bar, part_of_chords = _bar_of(chords.at, lines), self.families["Part"].stop - 1
        chord = self.families["Chord"].start + chords.value
        return [
            Events((np.unique(bar), 3, -1, 0), [part_of_chords]),
            Events((bar, 3, chords.at, 0), [self._beat_token(chords.at, lines), chord]),
        ]

    def _part_events(self, notes: GridNotes, lines: IntArray) -> list[Events]:
        """Return the events of the other parts."""
        first = {name: ids.start for name, ids in self.families.items()}
        part, pitch = np.divmod(notes.voice, NUM_PITCHES)
        bar = _bar_of(notes.onset, lines)
        bar_of_part, part_in_bar = np.unique(np.stack([bar, part]), axis=1)
        part_at, step_at = np.unique(np.stack([part, notes.onset]), axis=1)
        is_drum = self._is_drum[part]
        drum_token = first["Drum"] + pitch - self.drums.start
        pitch_token = first["Pitch"] + pitch - self.pitches.start
        note = np.where(is_drum, drum_token, pitch_token)
        velocity = first["Velocity"] + notes.velocity if self.velocities else -1
        duration = np.where(is_drum, -1, first["Duration"] + notes.duration)
        beat = self._beat_token(step_at, lines)
        return [
            Events((bar_of_part, 4 + part_in_bar, -1, 0), [first["Part"] + part_in_bar]),
            Events((_bar_of(step_at, lines), 4 + part_at, step_at, 0), [beat]),
            Events((bar, 4 + part, notes.onset, 1 + pitch), [note, velocity, duration]),
        ]

    def _beat_token(self, steps: IntArray, lines: IntArray) -> IntArray:
        """Return the `Beat` of each grid step in its bar."""
        return self.families["Beat"].start + steps - lines[_bar_of(steps, lines)]

    def _key_changes(self, report: QuantizationReport, lines: IntArray) -> _Changes:
        """Return the bar of each change of key, and the index of the key."""
        keys = np.array(report.score.key_signatures, np.int64).reshape(-1, 2)
        step, inside = report.inside(keys[:, 0], "key signatures")
        bar, key = find_changes(_bar_of(step, lines), _key_index(keys[inside, 1]))
        bar[:1] = 0  # also of the bars before the first signature
        return _Changes(bar, key)

    def _read_notes(self, report: QuantizationReport) -> GridNotes:
        """Return the notes by 128 part + pitch, with indices of the other values."""
        found = [self.find_track(track) for track in report.score.tracks]
        notes, part = report.numbered_notes(found, "notes of other instruments")
        is_drum, pitch = self._is_drum[part], notes["pitch"]
        known = np.where(is_drum, np.isin(pitch, self.drums), np.isin(pitch, self.pitches))
        report.drop("notes of other pitches", report.grid(notes["onset"][~known]))
        onset, inside = report.inside(notes["onset"][known])
        notes, part = notes[known][inside], part[known][inside]
        is_drum = self._is_drum[part]
        duration = report.grid(notes["onset"] + notes["duration"]) - onset
        longest = DURATIONS[-1]
        reason = f"notes longer than {longest // POSITIONS_PER_BEAT} beats"
        report.clip(reason, onset[~is_drum & (duration > longest)])
        nearest = np.array(DURATIONS)[nearest_bin(duration, DURATIONS, by_ratio=True)]
        columns = GridNotes(
            voice=NUM_PITCHES * part + notes["pitch"],
            onset=onset,
            duration=np.where(is_drum, 1, nearest),
            velocity=nearest_bin(notes["velocity"], self.velocities),
        )
        kept = remove_overlaps(columns, report)
        # A note that was shortened has the longest duration that fits.
        return kept._replace(duration=np.searchsorted(DURATIONS, kept.duration, side="right") - 1)


def _bar_of(steps: IntArray, lines: IntArray) -> IntArray:
    """Return the number of the bar of each grid step.

    Args:
        lines: grid steps of the bar lines, ascending.
    """
    return np.searchsorted(lines, steps, side="right") - 1


def _key_index(fifths: Any) -> Any:
    """Return the index of a key, or of keys, in `FIFTHS`; keys that sound the same are one."""
    return (fifths - FIFTHS.start) % len(FIFTHS)


def _equal_ratios(bins: Sequence[int]) -> list[int]:
    """Return whole numbers from the first to the second, as many as the third."""
    low, high, number = bins
    values = np.geomspace(low, high, number).round().astype(int).tolist()
    if not 4 <= low <= high <= 1000 or len(set(values)) < number:
        expected = "expected [lowest, highest, number] within 4 and 1000, all different"
        raise ParameterError("tempo_bins", list(bins), expected)
    return values
