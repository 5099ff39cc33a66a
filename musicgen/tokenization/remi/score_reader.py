"""Notes, chords and tempi of a Score in the grid steps and bins of REMI."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from musicgen.midi import NOTE, Score, pitch_name
from musicgen.tokenization.base import EncodingSummary
from musicgen.tokenization.chords.symbols import chord_index
from musicgen.tokenization.quantization import (
    GridNotes,
    find_changes,
    nearest_bin,
    remove_overlaps,
    to_grid,
)
from musicgen.tokenization.vocabulary import IntArray


class ScoreReader(NamedTuple):
    """Reads the events of a Score, and records dropped ones in a summary."""

    score: Score
    summary: EncodingSummary
    steps_per_beat: int
    end: int  # grid step from which events are dropped
    limit: str  # the same in words, such as `bar 4096`

    def notes(
        self, pitches: range, velocities: range, longest: int
    ) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Return step, pitch index, velocity index and duration (<= longest) in half steps."""
        score, summary = self.score, self.summary
        summary.notes_read = score.num_notes
        tracks = [track.notes for track in score.tracks if not track.is_drum]
        notes = np.concatenate([np.empty(0, NOTE), *tracks])
        summary.drop("notes of drums", summary.notes_read - len(notes))

        in_range = (notes["pitch"] >= pitches[0]) & (notes["pitch"] <= pitches[-1])
        names = f"{pitch_name(pitches[0])}-{pitch_name(pitches[-1])}"
        summary.drop(f"notes outside {names}", (~in_range).sum())
        notes = notes[in_range]

        step, inside = self._steps(notes["onset"], "notes")
        notes, step = notes[inside], step[inside]
        duration = to_grid(notes["duration"], 2 * self.steps_per_beat, score.ticks_per_beat)
        summary.clip(
            f"notes longer than {longest / 2 / self.steps_per_beat:g} beats",
            (duration > longest).sum(),
        )
        pitch, velocity = notes["pitch"] - pitches.start, nearest_bin(notes["velocity"], velocities)
        columns = GridNotes(pitch, 2 * step, np.clip(duration, 1, longest), velocity)
        kept = remove_overlaps(columns, summary)
        return kept.onset // 2, kept.voice, kept.velocity, kept.duration

    def chords(self) -> tuple[IntArray, IntArray]:
        """Return the steps and indices of the chord changes."""
        markers = self.score.markers
        rows = [(m.tick, i) for m in markers if (i := chord_index(m.text)) is not None]
        self.summary.drop("markers naming no chord", len(markers) - len(rows))
        if not rows:
            self.summary.rules.append("no chord markers: no Chord tokens")
        tick, chord = np.array(rows, dtype=np.int64).reshape(-1, 2).T
        step, inside = self._steps(tick, "chords")
        return find_changes(step[inside], chord[inside])

    def tempi(self, bins: range) -> tuple[IntArray, IntArray]:
        """Return the steps and bins of the tempo changes."""
        step, inside = self._steps(self.score.tempos["tick"], "tempi")
        return find_changes(step[inside], nearest_bin(self.score.tempos["bpm"][inside], bins))

    def _steps(self, ticks: IntArray, nouns: str) -> tuple[IntArray, NDArray[np.bool_]]:
        """Return the grid step of each tick, and whether it is kept."""
        step = to_grid(ticks, self.steps_per_beat, self.score.ticks_per_beat)
        inside = (step >= 0) & (step < self.end)
        self.summary.drop(f"{nouns} beyond {self.limit}", (~inside).sum())
        return step, inside
