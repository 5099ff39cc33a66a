"""REMI: piano as bars, positions and notes (Huang & Yang 2020; used by Liutkus et al. 2021)."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from musicgen.errors import ParameterError
from musicgen.midi import TICKS_PER_BEAT, Score, Track
from musicgen.tokenization.bar_constraints import REMIChords, bar_constraints
from musicgen.tokenization.bar_grammar import REMIGrammar
from musicgen.tokenization.bars import Events, InBars, sorted_tokens
from musicgen.tokenization.constraints import Constraint
from musicgen.tokenization.instruments import Instrument
from musicgen.tokenization.quantization import (
    QuantizationReport,
    find_changes,
    nearest_bin,
    parse_bins,
)
from musicgen.tokenization.vocabulary import IntArray
from musicgen.validation import check_int

MAX_NOTE_BEATS = 4


class REMI(InBars):
    """Bars of positions, each with changes of chord and tempo, then its notes; EOS at the end.

    All tracks but drums become one piano. Onsets are rounded to positions, durations to half
    positions (at most 4 beats), velocities and tempi to the nearest bin. Chords come from markers.
    With several time signatures, bars follow those of the piece from tick 0.

    Args:
        time_signatures: those of the vocabulary, see `TimeSignatures`.
        positions_per_beat: grid steps in a quarter; a divisor of 240.
        pitch_range: lowest and highest MIDI pitch.
        velocity_bins: lowest, highest and step; None: no Velocity tokens.
        tempo_bins: lowest, highest and step in quarters per minute; None: no Tempo tokens.
        chords: whether the vocabulary has Chord tokens.
        max_bars: maximum number of bars; later events are dropped.
        max_transposition: training crops are shifted by up to this many semitones up or down.
    """

    name: ClassVar[str] = "remi"
    note_families = ("Pitch",)
    header = ("Beat", "Chord", "Tempo")
    instruments = (Instrument("Piano"),)

    def __init__(
        self,
        *,
        time_signatures: Sequence[str] = ("4/4",),
        positions_per_beat: int = 4,
        pitch_range: Sequence[int] = (21, 108),
        velocity_bins: Sequence[int] | None = (40, 86, 2),
        tempo_bins: Sequence[int] | None = (32, 224, 3),
        chords: bool = True,
        max_bars: int = 4096,
        max_transposition: int = 6,
    ) -> None:
        check_int("positions_per_beat", positions_per_beat)
        half_beat = TICKS_PER_BEAT // 2
        if half_beat % positions_per_beat:
            expected = f"expected a divisor of {half_beat}"
            raise ParameterError("positions_per_beat", positions_per_beat, expected)
        self.steps_per_beat = self.positions_per_beat = positions_per_beat
        super().__init__(
            time_signatures,
            pitch_range,
            velocity_bins,
            tempo_bins,
            chords,
            max_bars,
            max_transposition,
        )
        self.tempi = parse_bins("tempo_bins", tempo_bins, 4, 1000)
        half_positions = np.arange(1, 2 * MAX_NOTE_BEATS * positions_per_beat + 1)
        self.durations = half_positions * (half_beat // positions_per_beat)
        self.number_tokens(
            ("Beat", "Tempo", "Pitch", "Velocity", "Duration", "Chord", "Key", "Part", "Drum"),
            Duration=[f"{half / 2:g}" for half in half_positions],
        )

    def grammar(self) -> REMIGrammar:
        return REMIGrammar(self)

    def constraints(self, request: Any, prompts: Sequence[Any]) -> list[Constraint]:
        grammar = self.grammar()
        chords = REMIChords(grammar, [request.progression(prompt) for prompt in prompts])
        return bar_constraints(self, grammar, request, prompts, [chords])

    def find_track(self, track: Track) -> int | None:
        return None if track.is_drum else 0

    def encode_with_report(self, score: Score) -> tuple[IntArray, QuantizationReport]:
        report, lines, signatures = self.in_bars(score)
        notes, track = report.pitched_notes(self.pitches)
        step, inside = report.inside(notes["onset"])
        notes = notes[inside]
        duration, longest = report.grid(notes["duration"], 2), len(self.families["Duration"])
        report.clip(f"notes longer than {MAX_NOTE_BEATS} beats", step[duration > longest])
        pitch, half_step, duration, velocity = report.remove_overlaps(
            notes["pitch"] - self.pitches.start,
            2 * step,
            np.clip(duration, 1, longest),
            nearest_bin(notes["velocity"], self.velocities),
            track[inside],
            unit=2,
        )
        step = half_step // 2
        chord_step, chord = self.chord_changes(report)
        tempo_step, tempo = find_changes(*self.tempi_inside(report))

        beats = np.flatnonzero(np.bincount(np.concatenate([step, chord_step, tempo_step])))
        bar = np.searchsorted(lines, beats, side="right") - 1
        num_bars = bar[-1] + 1 if len(bar) else 0
        first = {name: ids.start for name, ids in self.families.items()}
        note = [
            first["Pitch"] + pitch,
            first["Velocity"] + velocity if self.velocities else -1,
            first["Duration"] - 1 + duration,
        ]
        # Keys: the grid step, and the place among the events there.
        kinds: list[Events] = [
            ((lines[:num_bars], 0), [first["Bar"] + signatures[:num_bars]]),
            ((beats, 1), [first["Beat"] + beats - lines[bar]]),
            ((chord_step, 2), [first["Chord"] + chord]),
            ((tempo_step, 3), [first["Tempo"] + tempo]),
            ((step, 4 + pitch), note),
        ]
        return np.append(sorted_tokens(kinds), first["EOS"]), report
