"""REMI: piano as bars, beats and notes (Huang & Yang 2020; as used by Liutkus et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence
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
)
from musicgen.tokenization.chords import CHORDS, NO_CHORD, QUALITIES, ROOTS, chord_index
from musicgen.tokenization.metre import COMMON_TIME, Metres
from musicgen.tokenization.quantise import (
    GridNotes,
    bins_of,
    changes,
    nearest,
    separate,
    to_grid,
)
from musicgen.tokenization.remi_grammar import REMIGrammar
from musicgen.tokenization.vocabulary import vocabulary_of, within

LONGEST_NOTE = 4
"""In beats."""

# Order of the tokens at one grid step: Bar, Beat, Chord, Tempo, then notes by pitch.
_BAR, _BEAT, _CHORD, _TEMPO, _NOTES = range(5)


class REMI(Tokenizer):
    """Bars of positions, each with what changes in chord and tempo, then its notes; EOS.

    All non-drum tracks become one piano. Bars follow the time signatures from tick 0 if there are
    several to choose from; where the vocabulary has others, the report says so. Onsets are rounded
    to positions, durations to half positions (at most 4 beats), velocities and tempi to the
    nearest bin. Chords come from markers.

    Args:
        time_signatures: the metres in which bars may be, see `Metres`; one alone is that of all
            bars of all pieces.
        positions_per_beat: grid steps in a quarter; a divisor of 240.
        pitch_range: lowest and highest MIDI pitch.
        velocity_bins: lowest, highest and step.
        tempo_bins: the same, in quarters a minute; None for a vocabulary without Tempo tokens.
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
        time_signatures: Sequence[str] = ("4/4",),
        positions_per_beat: int = 4,
        pitch_range: Sequence[int] = (21, 108),
        velocity_bins: Sequence[int] = (40, 86, 2),
        tempo_bins: Sequence[int] | None = (32, 224, 3),
        chords: bool = True,
        max_bars: int = 4096,
        max_transposition: int = 6,
    ) -> None:
        if positions_per_beat < 1 or (TICKS_PER_BEAT // 2) % positions_per_beat:
            raise UserError(f"{positions_per_beat=}; give a number that divides 240")
        if max_bars < 1 or max_transposition < 0:
            raise UserError(
                f"{max_bars=}, {max_transposition=}; give at least one bar, and 0 or more semitones"
            )
        self.steps_per_beat = positions_per_beat
        self.metres = Metres(time_signatures, positions_per_beat)
        self.pitches = bins_of("pitch_range", (*pitch_range, 1), 0, 127)
        self.velocities = bins_of("velocity_bins", velocity_bins, 1, 127)
        self.tempi = range(0) if tempo_bins is None else bins_of("tempo_bins", tempo_bins, 4, 1000)
        self.chords = chords
        self.max_bars = max_bars
        self.max_transposition = max_transposition
        durations = range(1, 2 * LONGEST_NOTE * positions_per_beat + 1)
        self.vocabulary, self.families = vocabulary_of(
            {
                "Bar": self.metres.tokens,
                "EOS": ["EOS"],
                "Beat": [f"Beat_{i}" for i in range(self.metres.lengths.max())],
                "Tempo": [f"Tempo_{bpm}" for bpm in self.tempi],
                "Pitch": [f"Pitch_{pitch}" for pitch in self.pitches],
                "Velocity": [f"Velocity_{velocity}" for velocity in self.velocities],
                "Duration": [f"Duration_{half / 2:g}" for half in durations],
                "Chord": [f"Chord_{chord}" for chord in CHORDS if chords],
            }
        )

    def settings(self) -> dict[str, Any]:
        return {
            "time_signatures": self.metres.names,
            "positions_per_beat": self.steps_per_beat,
            "pitch_range": [self.pitches[0], self.pitches[-1]],
            "velocity_bins": _bins(self.velocities),
            "tempo_bins": _bins(self.tempi) if self.tempi else None,
            "chords": self.chords,
            "max_bars": self.max_bars,
            "max_transposition": self.max_transposition,
        }

    def start(self) -> IntArray:
        return np.array([self.families["Bar"].start])

    def bar_length(self, score: Score) -> int:
        """That of the first time signature, as this vocabulary reads it."""
        signature = score.time_signatures[0][1:] if score.time_signatures else COMMON_TIME
        return int(self.metres.lengths[self.metres.find(signature)])

    def grammar(self) -> REMIGrammar:
        return REMIGrammar(self)

    def encode_with_report(self, score: Score) -> tuple[IntArray, EncodingReport]:
        report = EncodingReport()
        bar_starts, metres = self.metres.bars(score, self.max_bars, report)
        end = int(bar_starts[-1])
        step, pitch, velocity, duration = self._notes(score, end, report)
        chord_step, chord = self._chords(score, end, report)
        tempo_step, tempo = self._tempi(score, end, report)

        # Every event is its first token, a key to sort by, and a number of tokens.
        content = np.concatenate([step, chord_step, tempo_step])
        beats = np.unique(content)
        bar = np.searchsorted(bar_starts, beats, side="right") - 1
        num_bars = bar[-1] + 1 if len(bar) else 0
        rank_count = _NOTES + len(self.pitches)
        keys = np.concatenate(
            [
                bar_starts[:num_bars] * rank_count + _BAR,
                beats * rank_count + _BEAT,
                chord_step * rank_count + _CHORD,
                tempo_step * rank_count + _TEMPO,
                step * rank_count + _NOTES + pitch,
            ]
        )
        first = np.concatenate(
            [
                metres[:num_bars] + self.families["Bar"].start,
                beats - bar_starts[bar] + self.families["Beat"].start,
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
        """One track named Piano; tempi and chord markers where the tokens have them.

        Time signatures are written where they are not the 4/4 of a file without any.
        """
        tokens = self.until_end(tokens)
        ticks = self.times(tokens) * (TICKS_PER_BEAT // self.steps_per_beat)
        bar, pitch, velocity, duration, tempo, chord = (
            within(tokens, self.families[family])
            for family in ("Bar", "Pitch", "Velocity", "Duration", "Tempo", "Chord")
        )
        metres = self.metres.time_signatures(ticks[bar], tokens[bar] - self.families["Bar"].start)
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
        return Score(TICKS_PER_BEAT, [Track("Piano", notes=notes)], tempos, metres, markers)

    def times(self, tokens: IntArray) -> IntArray:
        """Grid steps from the first bar: of the Bar, or of the Beat last passed. [L] -> [L]."""
        tokens = np.asarray(tokens, dtype=np.int64)
        is_bar = within(tokens, self.families["Bar"])
        is_beat = within(tokens, self.families["Beat"])
        lengths = self.metres.lengths[tokens[is_bar] - self.families["Bar"].start]
        # Before the first bar, and in it, nothing has passed.
        starts = np.concatenate([[0, 0], np.cumsum(lengths[:-1])])
        beat = np.where(is_beat, tokens - self.families["Beat"].start, 0)
        index = np.where(is_bar | is_beat, np.arange(len(tokens)), 0)
        return starts[np.cumsum(is_bar)] + beat[np.maximum.accumulate(index)]

    def bar_starts(self, tokens: IntArray, bar_length: int) -> IntArray:
        starts = self.times(tokens)[within(tokens, self.families["Bar"])]
        return starts if len(starts) else np.zeros(1, np.int64)

    def crop_places(self, tokens: IntArray, *, bar_length: int) -> IntArray:
        bars = np.flatnonzero(within(tokens, self.families["Bar"]))
        return np.stack([bars, np.zeros_like(bars)], axis=1)

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
        start = int(places[rng.integers(len(places)), 0]) if len(places) else 0
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
        self, score: Score, end: int, report: EncodingReport
    ) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Step, pitch index, velocity index, duration in half steps, of the notes to be kept.

        These, and what follows, are those before step `end`.
        """
        report.notes_read = score.num_notes
        tracks = [track.notes for track in score.tracks if not track.is_drum]
        notes = np.concatenate(tracks) if tracks else np.empty(0, NOTE)
        report.drop("notes of drums", report.notes_read - len(notes))

        in_range = (notes["pitch"] >= self.pitches[0]) & (notes["pitch"] <= self.pitches[-1])
        low, high = pitch_name(self.pitches[0]), pitch_name(self.pitches[-1])
        report.drop(f"notes outside {low}-{high}", len(notes) - int(in_range.sum()))
        notes = notes[in_range]

        step = to_grid(notes["onset"], self.steps_per_beat, score.ticks_per_beat)
        inside = self._inside(step, end, "notes", report)
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

    def _chords(self, score: Score, end: int, report: EncodingReport) -> tuple[IntArray, IntArray]:
        """Steps and indices of the chord changes."""
        named = [(m.tick, chord_index(m.text)) for m in score.markers if self.chords]
        rows = [(tick, chord) for tick, chord in named if chord is not None]
        report.drop("markers naming no chord", len(named) - len(rows))
        if self.chords and not rows:
            report.rules.append("no chord markers: no Chord tokens")
        tick, chord = np.array(rows, dtype=np.int64).reshape(-1, 2).T
        step = to_grid(tick, self.steps_per_beat, score.ticks_per_beat)
        inside = self._inside(step, end, "chords", report)
        return changes(step[inside], chord[inside])

    def _tempi(self, score: Score, end: int, report: EncodingReport) -> tuple[IntArray, IntArray]:
        """Steps and bins of the tempo changes."""
        step = to_grid(score.tempos["tick"], self.steps_per_beat, score.ticks_per_beat)
        if not self.tempi:
            return step[:0], step[:0]
        inside = self._inside(step, end, "tempi", report)
        return changes(step[inside], nearest(score.tempos["bpm"][inside], self.tempi))

    def _inside(
        self, step: IntArray, end: int, what: str, report: EncodingReport
    ) -> NDArray[np.bool_]:
        inside = (step >= 0) & (step < end)
        report.drop(f"{what} beyond bar {self.max_bars}", len(step) - int(inside.sum()))
        return inside


def _bins(values: range) -> list[int]:
    return [values[0], values[-1], values.step]


def pitch_name(pitch: int) -> str:
    """A MIDI pitch as a musician writes it: C4 is 60."""
    return f"{ROOTS[pitch % 12]}{pitch // 12 - 1}"
