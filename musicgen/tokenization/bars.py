"""What tokenizers with tokens of bars have in common."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from musicgen.midi import (
    DEFAULT_VELOCITY,
    NOTE,
    TEMPO,
    TICKS_PER_BEAT,
    KeySignature,
    Marker,
    NoteArray,
    Score,
    TimeSignature,
    Track,
)
from musicgen.midi.score import SIGNS
from musicgen.tokenization.augmentation import BarCrops
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.chords import CHORDS, chord_index
from musicgen.tokenization.grammar import latest
from musicgen.tokenization.instruments import Instrument
from musicgen.tokenization.quantization import (
    QuantizationReport,
    find_changes,
    nearest_bin,
    parse_bins,
)
from musicgen.tokenization.vocabulary import IntArray, number_tokens, within
from musicgen.tokenization.whole_bars import TimeSignatures, in_whole_bars
from musicgen.validation import check_bool, check_int

FIFTHS = range(-5, 7)  # keys that sound the same are one
KEYS = [*map(str, FIFTHS), *(f"{fifths}m" for fifths in FIFTHS)]
"""The values of tokens of keys with modes; the major ones come first."""


Events = tuple[Sequence[Any], Sequence[Any]]
"""Tokens of one kind: sort keys from -1 on, the most important first, and one to three ids.

The ids of an event follow one another; -1 stands for no token. Each key and id is an array [N] or
one number for all; the first key is an array.
"""


def key_index(key: KeySignature) -> int:
    """Return the index in `KEYS` of a key."""
    return (key.fifths - FIFTHS.start) % len(FIFTHS) + len(FIFTHS) * key.minor


def key_at(tick: int, index: int) -> KeySignature:
    """Return the signature, at a tick, of a key by its index in `KEYS`."""
    return KeySignature(tick, FIFTHS[index % len(FIFTHS)], index >= len(FIFTHS))


def first_key(tokens: IntArray, keys: range) -> list[KeySignature]:
    """Return the key of a piece, from the first token of a key among its ids [L]; or none."""
    found = tokens[within(tokens, keys)][:1] - keys.start
    return [key_at(0, index) for index in found.tolist()]


class InBars(Tokenizer):
    """Bars of beats, and what their tokens mean; a vocabulary may lack some of the families.

    A `Bar`, one per time signature, is followed by changes of `Key`, `Tempo` and `Chord`, by
    `Part`s, and by notes: `Pitch` or `Drum`, `Velocity`, and the `Duration` of a pitch. A `Beat` is
    a grid step of its bar; a `Part` begins at the bar's first.

    Attributes:
        header, header_in_training: see `BarCrops`.
        signatures: the time signatures of the vocabulary.
        instruments: the parts; a single one needs no tokens.
        pitches, velocities, tempi: the values of the tokens; without velocities all are equal.
        durations: in ticks of decoded scores. [num_durations]
    """

    header: tuple[str, ...]
    header_in_training: ClassVar[bool] = False
    instruments: Sequence[Instrument]
    drums: ClassVar[range] = range(0)
    tempi: Sequence[int]
    durations: IntArray

    def __init__(
        self,
        time_signatures: Sequence[str],
        pitch_range: Sequence[int],
        velocity_bins: Sequence[int] | None,
        tempo_bins: Sequence[int] | None,
        chords: bool,
        max_bars: int,
        max_transposition: int,
    ) -> None:
        check_bool("chords", chords)
        check_int("max_bars", max_bars)
        check_int("max_transposition", max_transposition, 0)
        self.signatures = TimeSignatures(time_signatures, self.steps_per_beat)
        self.pitches = parse_bins("pitch_range", pitch_range, 0, 127, step=1)
        self.velocities = parse_bins("velocity_bins", velocity_bins, 1, 127)
        self.time_signatures, self.pitch_range = time_signatures, pitch_range
        self.velocity_bins, self.tempo_bins = velocity_bins, tempo_bins
        self.chords, self.max_bars, self.max_transposition = chords, max_bars, max_transposition

    def number_tokens(self, order: Sequence[str], **values: Sequence[Any]) -> None:
        """Number the tokens of bars and of the end, then of families in this order.

        Args:
            order: names of the families; those without values have no tokens.
            values: of the families that are not common to all tokenizers with bars.
        """
        values |= {
            "Beat": range(self.signatures.lengths.max()),
            "Tempo": self.tempi,
            "Chord": CHORDS if self.chords else (),
            "Pitch": self.pitches,
            "Velocity": self.velocities,
        }
        families = {"Bar": self.signatures.tokens, "EOS": ["EOS"]}
        families |= {name: [f"{name}_{each}" for each in values.get(name, ())] for name in order}
        self.vocabulary, self.families = number_tokens(families)

    @cached_property
    def places(self) -> IntArray:
        """The place of each part in a bar; the part of chords is the last, but comes first. [P]"""
        places = np.arange(max(1, len(self.families["Part"])))
        places[len(self.instruments) :] = -1
        return places

    @cached_property
    def crops(self) -> BarCrops:
        return BarCrops(self.families, self.header, self.header_in_training)

    def start_tokens(self, signature: TimeSignature | None = None) -> IntArray:
        index = 0 if signature is None else self.signatures.find(signature[1:])
        return np.array([self.families["Bar"].start + index])

    def bar_length(self, score: Score) -> int:
        return self._bar_steps(score.first_time_signature())

    def in_bars(self, score: Score) -> tuple[QuantizationReport, IntArray, IntArray]:
        """Return the report of a score, which has whole bars there, and `TimeSignatures.bars`."""
        report = in_whole_bars(score, self.steps_per_beat, self._bar_steps)
        lines, of_bars = self.signatures.bars(self.max_bars, report)
        return report, lines, of_bars

    def _bar_steps(self, signature: TimeSignature) -> int:
        index = self.signatures.find((signature.numerator, signature.denominator))
        return int(self.signatures.lengths[index])

    def times(self, tokens: IntArray) -> IntArray:
        """Return the grid step of each id: that of its Bar, Part or the last Beat. [L] -> [L]."""
        tokens = np.asarray(tokens, dtype=np.int64)
        is_bar, is_beat, is_part = (
            within(tokens, self.families[name]) for name in ("Bar", "Beat", "Part")
        )
        lengths = self.signatures.lengths[tokens[is_bar] - self.families["Bar"].start]
        # Before the first bar, and at its beginning, the time is 0.
        starts = np.concatenate([[0, 0], np.cumsum(lengths[:-1])])
        beat = np.where(is_beat, tokens - self.families["Beat"].start, 0)
        return starts[np.cumsum(is_bar)] + latest(0, is_bar | is_beat | is_part, beat)

    def bar_starts(self, tokens: IntArray, bar_length: int) -> IntArray:
        starts = self.times(tokens)[within(tokens, self.families["Bar"])]
        return starts if len(starts) else np.zeros(1, np.int64)

    def chord_changes(self, report: QuantizationReport) -> tuple[IntArray, IntArray]:
        """Return grid step and index in `CHORDS` of each change of chord before the end."""
        markers = [m for m in report.score.markers if self.chords and m.text not in SIGNS]
        tick = np.array([marker.tick for marker in markers], dtype=np.int64)
        found = [chord_index(marker.text) for marker in markers]
        chord = np.array([-1 if index is None else index for index in found], dtype=np.int64)
        step, is_chord = report.grid(tick), chord >= 0
        report.drop("markers naming no chord", step[~is_chord])
        if self.chords:
            report.no_chords_until = min(step[is_chord], default=np.inf)
        step, inside = report.inside(tick[is_chord], "chords")
        return find_changes(step, chord[is_chord][inside])

    def tempi_inside(
        self, report: QuantizationReport, by_ratio: bool = False
    ) -> tuple[IntArray, IntArray]:
        """Return grid step and index in `tempi` of each tempo before the end.

        Args:
            by_ratio: see `bin_edges`.
        """
        tempos = report.score.tempos if self.tempi else np.empty(0, TEMPO)
        step, inside = report.inside(tempos["tick"], "tempi")
        return step, nearest_bin(tempos["bpm"][inside], self.tempi, by_ratio)

    def decode(self, tokens: IntArray) -> Score:
        """Return a track per part, also without notes, with all that its tokens hold.

        Time signatures are omitted where they are the default of MIDI files, 4/4.
        """
        tokens = self.until_end(tokens)
        ticks = self.times(tokens) * (TICKS_PER_BEAT // self.steps_per_beat)

        def changes(name: str) -> Iterator[tuple[int, int]]:
            """Yield the tick of each token of a family, and its index in the family."""
            at = within(tokens, self.families[name])
            indices = tokens[at] - self.families[name].start
            return zip(ticks[at].tolist(), indices.tolist(), strict=True)

        tempos = [(tick, self.tempi[index]) for tick, index in changes("Tempo")]
        bar = within(tokens, self.families["Bar"])
        bar_signatures = tokens[bar] - self.families["Bar"].start
        notes, part = self._notes(tokens, ticks)
        tracks = [
            Track(each.name, each.program, each.is_drum, notes[part == i])
            for i, each in enumerate(self.instruments)
        ]
        return Score(
            TICKS_PER_BEAT,
            tracks,
            np.array(tempos, TEMPO),
            self.signatures.of_bars(ticks[bar], bar_signatures),
            [Marker(tick, CHORDS[index]) for tick, index in changes("Chord")],
            key_signatures=[key_at(tick, index) for tick, index in changes("Key")],
        )

    def _notes(self, tokens: IntArray, ticks: IntArray) -> tuple[NoteArray, IntArray]:
        """Return the complete notes of ids at ticks [L], and the index of the part of each. [N]"""
        families = self.families
        after = np.append(tokens[1:], [families["EOS"].start] * 2)  # incomplete at the end
        at = np.flatnonzero(within(tokens, families["Pitch"]) | within(tokens, families["Drum"]))
        if self.velocities:
            at = at[within(after[at], families["Velocity"])]
        duration = after[at + (1 if self.velocities else 0)]
        is_drum = within(tokens[at], families["Drum"])
        is_complete = is_drum | within(duration, families["Duration"])
        at, duration, is_drum = at[is_complete], duration[is_complete], is_drum[is_complete]
        notes = np.empty(len(at), NOTE)
        notes["onset"] = ticks[at]
        first_pitch = families["Pitch"].start - self.pitches.start
        first_drum = families["Drum"].start - self.drums.start
        notes["pitch"] = tokens[at] - np.where(is_drum, first_drum, first_pitch)
        notes["duration"] = TICKS_PER_BEAT // self.steps_per_beat
        pitched = ~is_drum
        notes["duration"][pitched] = self.durations[duration[pitched] - families["Duration"].start]
        notes["velocity"] = DEFAULT_VELOCITY
        if self.velocities:
            notes["velocity"] = np.array(self.velocities)[after[at] - families["Velocity"].start]
        is_part = within(tokens, families["Part"])
        return notes, latest(0, is_part, tokens - families["Part"].start)[at]


def sorted_tokens(kinds: Sequence[Events]) -> IntArray:
    """Return the ids of events of several kinds, in ascending order of the events' keys. -> [L]"""
    num_keys = len(kinds[0][0])
    columns = np.full((num_keys + 3, sum(len(keys[0]) for keys, _ in kinds)), -1)
    start = 0
    for keys, ids in kinds:
        end = start + len(keys[0])
        for column, values in zip(columns, [*keys, *ids], strict=False):
            column[start:end] = values
        start = end
    # One number for all keys of an event sorts faster than several.
    key = columns[:num_keys] + 1
    number = np.ravel_multi_index(list(key), key.max(axis=1, initial=0) + 1)
    tokens = columns[num_keys:, np.argsort(number, kind="stable")].T.ravel()
    return tokens[tokens >= 0]
