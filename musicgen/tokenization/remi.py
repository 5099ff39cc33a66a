"""REMI: piano as bars, beats and notes (Huang & Yang 2020; as used by Liutkus et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from musicgen.errors import UserError
from musicgen.midi import NOTE, TEMPO, Marker, Score, Track
from musicgen.tokenization.base import (
    TICKS_PER_BEAT,
    EncodingReport,
    IntArray,
    Tokenizer,
    vocabulary_of,
    within,
)
from musicgen.tokenization.chords import CHORDS, NO_CHORD, QUALITIES, ROOTS, chord_index
from musicgen.tokenization.quantise import (
    GridNotes,
    bins_of,
    changes,
    nearest,
    separate,
    to_grid,
)
from musicgen.tokenization.remi_grammar import REMIGrammar

LONGEST_NOTE = 4
"""In beats."""

# Order of the tokens at one grid step: Bar, Beat, Chord, Tempo, then notes by pitch.
_BAR, _BEAT, _CHORD, _TEMPO, _NOTES = range(5)


class REMI(Tokenizer):
    """Bars of positions, each with what changes in chord and tempo, then its notes; EOS.

    All non-drum tracks become one piano. Every bar has `beats_per_bar` quarters from tick 0,
    whatever the time signatures; where they disagree, the report says so. Onsets are rounded to
    positions, durations to half positions (at most 4 beats), velocities and tempi to the nearest
    bin. Chords come from markers.

    Args:
        beats_per_bar: quarters in a bar.
        positions_per_beat: grid steps in a quarter; a divisor of 240.
        pitch_range: lowest and highest MIDI pitch.
        velocity_bins, tempo_bins: lowest, highest and step (of MIDI velocity, of bpm).
        chords: whether the vocabulary has Chord tokens.
        max_bars: what lies beyond is dropped.
        max_transposition: training crops are shifted by up to so many semitones either way.

    Raises:
        UserError: settings that contradict each other.
    """

    name: ClassVar[str] = "remi"

    def __init__(
        self,
        *,
        beats_per_bar: int = 4,
        positions_per_beat: int = 4,
        pitch_range: Sequence[int] = (21, 108),
        velocity_bins: Sequence[int] = (40, 86, 2),
        tempo_bins: Sequence[int] = (32, 224, 3),
        chords: bool = True,
        max_bars: int = 4096,
        max_transposition: int = 6,
    ) -> None:
        if (
            beats_per_bar < 1
            or positions_per_beat < 1
            or (TICKS_PER_BEAT // 2) % positions_per_beat
        ):
            raise UserError(
                f"REMI: beats_per_bar={beats_per_bar}, positions_per_beat={positions_per_beat}; "
                "give at least one beat, and a number of positions that divides 240"
            )
        self.steps_per_beat = positions_per_beat
        self.bar_steps = beats_per_bar * positions_per_beat
        self.pitches = bins_of("pitch_range", (*pitch_range, 1), 127)
        self.velocities = bins_of("velocity_bins", velocity_bins, 127)
        self.tempi = bins_of("tempo_bins", tempo_bins)
        self.chords = chords
        self.max_bars = max_bars
        self.max_transposition = max_transposition
        durations = range(1, 2 * LONGEST_NOTE * positions_per_beat + 1)
        self.vocabulary, self.families = vocabulary_of(
            {
                "Bar": ["Bar"],
                "EOS": ["EOS"],
                "Beat": [f"Beat_{i}" for i in range(self.bar_steps)],
                "Tempo": [f"Tempo_{bpm}" for bpm in self.tempi],
                "Pitch": [f"Pitch_{pitch}" for pitch in self.pitches],
                "Velocity": [f"Velocity_{velocity}" for velocity in self.velocities],
                "Duration": [f"Duration_{half / 2:g}" for half in durations],
                "Chord": [f"Chord_{chord}" for chord in CHORDS if chords],
            }
        )

    def settings(self) -> dict[str, Any]:
        return {
            "beats_per_bar": self.bar_steps // self.steps_per_beat,
            "positions_per_beat": self.steps_per_beat,
            "pitch_range": [self.pitches[0], self.pitches[-1]],
            "velocity_bins": [self.velocities[0], self.velocities[-1], self.velocities.step],
            "tempo_bins": [self.tempi[0], self.tempi[-1], self.tempi.step],
            "chords": self.chords,
            "max_bars": self.max_bars,
            "max_transposition": self.max_transposition,
        }

    def start(self) -> IntArray:
        return np.array([self.vocabulary.id("Bar")])

    def bar_length(self, score: Score) -> int:
        return self.bar_steps

    def grammar(self) -> REMIGrammar:
        return REMIGrammar(self)

    def encode_with_report(self, score: Score) -> tuple[IntArray, EncodingReport]:
        report = EncodingReport()
        step, pitch, velocity, duration = self._notes(score, report)
        chord_step, chord = self._chords(score, report)
        tempo_step, tempo = self._tempi(score, report)
        self._explain_meter(score, report)

        # Every event is its first token, a key to sort by, and a number of tokens.
        content = np.concatenate([step, chord_step, tempo_step])
        beats = np.unique(content)
        bars = np.arange(content.max() // self.bar_steps + 1 if len(content) else 0)
        rank_count = _NOTES + len(self.pitches)
        keys = np.concatenate(
            [
                bars * self.bar_steps * rank_count + _BAR,
                beats * rank_count + _BEAT,
                chord_step * rank_count + _CHORD,
                tempo_step * rank_count + _TEMPO,
                step * rank_count + _NOTES + pitch,
            ]
        )
        first = np.concatenate(
            [
                np.full(len(bars), self.families["Bar"].start),
                beats % self.bar_steps + self.families["Beat"].start,
                chord + self.families["Chord"].start,
                tempo + self.families["Tempo"].start,
                pitch + self.families["Pitch"].start,
            ]
        )
        size = np.ones(len(keys), np.int64)
        num_notes = len(step)
        size[len(size) - num_notes :] = 3
        order = np.argsort(keys)
        place = np.empty(len(keys), np.int64)
        place[order] = np.cumsum(size[order]) - size[order]
        tokens = np.empty(size.sum() + 1, np.int64)
        tokens[place] = first
        at = place[len(place) - num_notes :]
        tokens[at + 1] = velocity + self.families["Velocity"].start
        tokens[at + 2] = duration - 1 + self.families["Duration"].start
        tokens[-1] = self.families["EOS"].start
        return tokens, report

    def decode(self, tokens: IntArray) -> Score:
        """One track named Piano; tempi and chord markers where the tokens have them."""
        tokens = self.until_end(tokens)
        ticks = self.times(tokens) * (TICKS_PER_BEAT // self.steps_per_beat)
        pitch, velocity, duration, tempo, chord = (
            within(tokens, self.families[family])
            for family in ("Pitch", "Velocity", "Duration", "Tempo", "Chord")
        )
        at = np.flatnonzero(pitch[:-2] & velocity[1:-1] & duration[2:])
        half_step = TICKS_PER_BEAT // (2 * self.steps_per_beat)
        notes = np.empty(len(at), NOTE)
        notes["onset"] = ticks[at]
        notes["duration"] = (tokens[at + 2] - self.families["Duration"].start + 1) * half_step
        notes["pitch"] = tokens[at] - self.families["Pitch"].start + self.pitches.start
        level = tokens[at + 1] - self.families["Velocity"].start
        notes["velocity"] = level * self.velocities.step + self.velocities.start
        tempos = np.empty(int(tempo.sum()), TEMPO)
        tempos["tick"] = ticks[tempo]
        level = tokens[tempo] - self.families["Tempo"].start
        tempos["bpm"] = level * self.tempi.step + self.tempi.start
        names = (tokens[chord] - self.families["Chord"].start).tolist()
        markers = [
            Marker(tick, CHORDS[name])
            for tick, name in zip(ticks[chord].tolist(), names, strict=True)
        ]
        return Score(TICKS_PER_BEAT, [Track("Piano", notes=notes)], tempos, [], markers)

    def times(self, tokens: IntArray) -> IntArray:
        """Grid steps from the first bar: of the Bar, or of the Beat last passed. [L] -> [L]."""
        tokens = np.asarray(tokens, dtype=np.int64)
        is_bar = tokens == self.families["Bar"].start
        is_beat = within(tokens, self.families["Beat"])
        bar = np.maximum(np.cumsum(is_bar) - 1, 0)
        beat = np.where(is_beat, tokens - self.families["Beat"].start, 0)
        index = np.where(is_bar | is_beat, np.arange(len(tokens)), 0)
        return bar * self.bar_steps + beat[np.maximum.accumulate(index)]

    def sample_window(
        self,
        tokens: IntArray,
        rng: np.random.Generator,
        length: int,
        *,
        bar_length: int,
        augment: bool,
    ) -> IntArray:
        bars = np.flatnonzero(tokens == self.families["Bar"].start)
        start = int(bars[rng.integers(len(bars))]) if len(bars) else 0
        window = tokens[start : start + length].astype(np.int64)
        return self._transposed(window, rng) if augment else window

    def _transposed(self, window: IntArray, rng: np.random.Generator) -> IntArray:
        """All pitches and chord roots, moved by one random interval that keeps them in range."""
        is_pitch = within(window, self.families["Pitch"])
        down = up = self.max_transposition
        if is_pitch.any():
            pitches = window[is_pitch]
            down = min(down, int(pitches.min()) - self.families["Pitch"].start)
            up = min(up, self.families["Pitch"].stop - 1 - int(pitches.max()))
        shift = int(rng.integers(-down, up + 1))
        window[is_pitch] += shift
        first = self.families["Chord"].start
        is_chord = within(window, range(first, first + NO_CHORD)) & self.chords
        window[is_chord] = (window[is_chord] - first + shift * len(QUALITIES)) % NO_CHORD + first
        return window

    def _notes(
        self, score: Score, report: EncodingReport
    ) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Step, pitch index, velocity index, duration in half steps, of the notes to be kept."""
        report.notes_read = score.num_notes
        tracks = [track.notes for track in score.tracks if not track.is_drum]
        notes = np.concatenate(tracks) if tracks else np.empty(0, NOTE)
        report.drop("notes of drums", report.notes_read - len(notes))

        in_range = (notes["pitch"] >= self.pitches[0]) & (notes["pitch"] <= self.pitches[-1])
        low, high = _pitch_name(self.pitches[0]), _pitch_name(self.pitches[-1])
        report.drop(f"notes outside {low}-{high}", len(notes) - int(in_range.sum()))
        notes = notes[in_range]

        step = to_grid(notes["onset"], self.steps_per_beat, score.ticks_per_beat)
        inside = self._inside(step, "notes", report)
        notes, step = notes[inside], step[inside]

        duration = to_grid(notes["duration"], 2 * self.steps_per_beat, score.ticks_per_beat)
        longest = len(self.families["Duration"])
        report.clip(f"notes longer than {longest // 2} subbeats", int((duration > longest).sum()))
        columns = GridNotes(
            notes["pitch"] - self.pitches.start,
            2 * step,
            np.clip(duration, 1, longest),
            nearest(notes["velocity"], self.velocities),
        )
        kept, merged, shortened = separate(columns)
        report.drop("notes doubling another", merged)
        report.clip("notes struck again while sounding", shortened)
        report.notes_kept = len(kept.onset)
        return kept.onset // 2, kept.voice, kept.velocity, kept.duration

    def _chords(self, score: Score, report: EncodingReport) -> tuple[IntArray, IntArray]:
        """Steps and indices of the chord changes."""
        named = [(m.tick, chord_index(m.text)) for m in score.markers if self.chords]
        rows = [(tick, chord) for tick, chord in named if chord is not None]
        report.drop("markers naming no chord", len(named) - len(rows))
        if self.chords and not rows:
            report.rules.append("no chord markers: no Chord tokens")
        tick, chord = np.array(rows, dtype=np.int64).reshape(-1, 2).T
        step = to_grid(tick, self.steps_per_beat, score.ticks_per_beat)
        inside = self._inside(step, "chords", report)
        return changes(step[inside], chord[inside])

    def _tempi(self, score: Score, report: EncodingReport) -> tuple[IntArray, IntArray]:
        """Steps and bins of the tempo changes."""
        step = to_grid(score.tempos["tick"], self.steps_per_beat, score.ticks_per_beat)
        inside = self._inside(step, "tempi", report)
        return changes(step[inside], nearest(score.tempos["bpm"][inside], self.tempi))

    def _inside(self, step: IntArray, what: str, report: EncodingReport) -> NDArray[np.bool_]:
        inside = (step >= 0) & (step < self.max_bars * self.bar_steps)
        report.drop(f"{what} beyond bar {self.max_bars}", len(step) - int(inside.sum()))
        return inside

    def _explain_meter(self, score: Score, report: EncodingReport) -> None:
        beats = self.bar_steps // self.steps_per_beat
        for top, bottom in dict.fromkeys(
            (s.numerator, s.denominator) for s in score.time_signatures
        ):
            if Fraction(4 * top, bottom) != beats:
                report.rules.append(f"{top}/{bottom} read as {beats}/4")


def _pitch_name(pitch: int) -> str:
    return f"{ROOTS[pitch % 12]}{pitch // 12 - 1}"
