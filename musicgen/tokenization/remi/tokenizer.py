"""REMI: piano as bars, positions and notes (Huang & Yang 2020; used by Liutkus et al. 2021)."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from musicgen.errors import ParameterError
from musicgen.midi import TICKS_PER_BEAT, Score, Track
from musicgen.tokenization.bars import InBars, arranged
from musicgen.tokenization.base import Losses
from musicgen.tokenization.groove2groove.instruments import Instrument
from musicgen.tokenization.quantization import (
    GridNotes,
    find_changes,
    nearest_bin,
    parse_bins,
    remove_overlaps,
)
from musicgen.tokenization.remi.grammar import REMIGrammar
from musicgen.tokenization.vocabulary import IntArray
from musicgen.validation import check_int


class REMI(InBars):
    """Bars of positions, each with changes of chord and tempo, then its notes; EOS at the end.

    All tracks but drums become one piano. Onsets are rounded to positions, durations to half
    positions (at most 4 beats), velocities and tempi to the nearest bin. Chords come from markers.
    With several metres, bars follow the time signatures from tick 0.

    Args:
        time_signatures: the metres of the vocabulary, see `Metres`.
        positions_per_beat: grid steps in a quarter; a divisor of 240.
        pitch_range: lowest and highest MIDI pitch.
        velocity_bins: lowest, highest and step.
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
        velocity_bins: Sequence[int] = (40, 86, 2),
        tempo_bins: Sequence[int] | None = (32, 224, 3),
        chords: bool = True,
        max_bars: int = 4096,
        max_transposition: int = 6,
    ) -> None:
        check_int("positions_per_beat", positions_per_beat)
        if (TICKS_PER_BEAT // 2) % positions_per_beat:
            expected = "expected a divisor of 240"
            raise ParameterError("positions_per_beat", positions_per_beat, expected)
        self.steps_per_beat = self.positions_per_beat = positions_per_beat
        bins = pitch_range, velocity_bins, tempo_bins
        super().__init__(time_signatures, *bins, chords, max_bars, max_transposition)
        self.tempi = parse_bins("tempo_bins", tempo_bins, 4, 1000)
        halves = np.arange(1, 8 * positions_per_beat + 1)  # of positions; at most 4 beats
        self.durations = halves * (TICKS_PER_BEAT // (2 * positions_per_beat))
        order = ("Beat", "Tempo", "Pitch", "Velocity", "Duration", "Chord", "Key", "Part", "Drum")
        self.number_tokens(order, Duration=[f"{half / 2:g}" for half in halves])

    def grammar(self) -> REMIGrammar:
        return REMIGrammar(self)

    def find_track(self, track: Track) -> int | None:
        return None if track.is_drum else 0

    def encode_with_losses(self, score: Score) -> tuple[IntArray, Losses]:
        losses, bar_starts, metres = self.in_bars(score)
        step, pitch, velocity, duration = self._notes(losses)
        chord_step, chord = self.chord_changes(losses)
        tempo_step, tempo = find_changes(*self.tempi_inside(losses))

        beats = np.unique(np.concatenate([step, chord_step, tempo_step]))
        bar = np.searchsorted(bar_starts, beats, side="right") - 1
        num_bars = bar[-1] + 1 if len(bar) else 0
        num_ranks, first = 4 + len(self.pitches), {k: x.start for k, x in self.families.items()}
        struck = first["Velocity"] + velocity, first["Duration"] + duration - 1
        # Step and rank among the events there, and up to three ids.
        events: list[tuple[IntArray, ...]] = [
            (num_ranks * bar_starts[:num_bars], first["Bar"] + metres[:num_bars]),
            (num_ranks * beats + 1, first["Beat"] + beats - bar_starts[bar]),
            (num_ranks * chord_step + 2, first["Chord"] + chord),
            (num_ranks * tempo_step + 3, first["Tempo"] + tempo),
            (num_ranks * step + 4 + pitch, first["Pitch"] + pitch, *struck),
        ]
        return np.append(arranged(events, num_keys=1), first["EOS"]), losses

    def _notes(self, losses: Losses) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Return step, pitch index, velocity index and duration in half steps of the notes."""
        notes, _ = losses.pitched_notes(self.pitches)
        step, inside = losses.inside(notes["onset"])
        notes = notes[inside]
        duration, longest = losses.grid(notes["duration"], 2), len(self.families["Duration"])
        too_long = step[duration > longest]
        losses.clip(f"notes longer than {longest / 2 / self.steps_per_beat:g} beats", too_long)
        velocity = nearest_bin(notes["velocity"], self.velocities)
        columns = GridNotes(
            notes["pitch"] - self.pitches.start, 2 * step, np.clip(duration, 1, longest), velocity
        )
        kept = remove_overlaps(columns, losses, unit=2)
        return kept.onset // 2, kept.voice, kept.velocity, kept.duration

    def from_bar(self, tokens: IntArray, bar: int, bar_length: int) -> IntArray:
        """Return the ids from a bar on, which begins with the chord and the tempo in force."""
        rest = super().from_bar(tokens, bar, bar_length)
        return self.with_header(rest, tokens[: len(tokens) - len(rest)])
