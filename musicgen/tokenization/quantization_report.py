"""The quantisation report: what encoding moved, shortened, merged or left out, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from musicgen.midi import NoteArray, Score
from musicgen.midi.score import pitch_name
from musicgen.text import pluralize
from musicgen.tokenization.quantization import UNMOVED, to_grid
from musicgen.tokenization.vocabulary import IntArray


@dataclass
class QuantizationSummary:
    """Number of notes kept, dropped and clipped, and interpretations of the piece.

    Attributes:
        dropped, clipped, changed: number of events by reason, which begins with a plural noun.
        rules: interpretations that concern the whole piece, such as `3/4 read as 4/4`.
    """

    notes_read: int = 0
    notes_kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    clipped: dict[str, int] = field(default_factory=dict)
    changed: dict[str, int] = field(default_factory=dict)
    rules: list[str] = field(default_factory=list)

    @property
    def lossy(self) -> bool:
        """Whether anything was dropped, clipped, changed or interpreted by a rule."""
        return bool(self.dropped or self.clipped or self.changed or self.rules)

    def describe(self) -> str:
        """Return one line, such as `12 notes outside A0-C8 dropped, 3/4 read as 4/4`."""
        parts = []
        if not self.notes_read:
            parts.append("no notes")
        elif self.notes_kept == self.notes_read:
            parts.append(f"all {pluralize(self.notes_read, 'notes')} kept")
        parts += [f"{pluralize(count, reason)} dropped" for reason, count in self.dropped.items()]
        parts += [f"{pluralize(count, reason)} clipped" for reason, count in self.clipped.items()]
        parts += [pluralize(count, reason) for reason, count in self.changed.items()]
        return ", ".join(parts + self.rules)


class QuantizationReport:
    """What encoding a piece changed, with the grid step of each change.

    An encoder records here what it drops, clips, changes and interprets; `summary` counts it.

    Attributes:
        score: the piece, in whole bars if the tokens need them, see `in_whole_bars`.
        tick_map: from ticks of the piece to those of `score`, see `relocate`. [2, N]
        read, kept: the grid steps at which the notes of the piece begin, and those of the tokens.
        no_chords_until: grid step of the first chord; 0 for vocabularies without chords.
        end: the grid step at which the last bar or beat that tokens may have ends, and its name.
        too_long: whether notes begin there or later.
    """

    end: tuple[int, str]

    def __init__(self, score: Score, steps_per_beat: int) -> None:
        self.score, self.steps_per_beat = score, steps_per_beat
        self.tick_map = UNMOVED
        self.read = self.grid(score.notes["onset"])
        self.kept = self.read[:0]
        self.no_chords_until, self.too_long = 0.0, False
        self._events: list[tuple[str, str, IntArray]] = []  # kind, reason, grid steps
        self._rules: list[tuple[str, float, float]] = []  # rule, first and last grid step

    def grid(self, ticks: IntArray, per_step: int = 1) -> IntArray:
        """Return the nearest grid step of each tick of `score`, or the nearest part of a step.

        Args:
            per_step: parts of a grid step.
        """
        return to_grid(ticks, per_step * self.steps_per_beat, self.score.ticks_per_beat)

    def drop(self, reason: str, steps: IntArray) -> None:
        """Record events that are left out."""
        self._events.append(("dropped", reason, steps))

    def clip(self, reason: str, steps: IntArray) -> None:
        """Record events that are shortened."""
        self._events.append(("clipped", reason, steps))

    def interpret(self, rule: str, start: float, end: float) -> None:
        """Record a rule by which the music from one grid step to another is read."""
        self._rules.append((rule, start, end))

    def round(self, onset: IntArray, track: IntArray) -> None:
        """Record which onsets, in ticks, the grid moves far, and which it joins in their track."""
        beat = self.score.ticks_per_beat
        order = np.lexsort((onset, track))
        onset, track, step = onset[order], track[order], self.grid(onset[order])
        # By 0.3 steps or more, as triplets move on a grid of sixteenths; in integers.
        far = 10 * np.abs(step * beat - onset * self.steps_per_beat) >= 3 * beat
        self._events.append(("changed", "onsets moved to the grid", step[far]))
        # Onsets that are a 24th of a beat or more apart were no chord.
        apart = 24 * np.diff(onset) >= beat
        joined = (np.diff(step) == 0) & (np.diff(track) == 0) & apart
        self._events.append(("changed", "notes merged into chords", step[1:][joined]))

    def numbered_notes(
        self, numbers: Sequence[int | None], others: str
    ) -> tuple[NoteArray, IntArray]:
        """Return the notes of the tracks that have a number, and the number of each. [N]

        Args:
            numbers: of each track; None: its notes are dropped.
            others: what the dropped notes are.
        """
        sizes = [len(track.notes) for track in self.score.tracks]
        of_tracks = np.array([-1 if number is None else number for number in numbers], np.int64)
        notes, number = self.score.notes, np.repeat(of_tracks, sizes)
        known = number >= 0
        self.drop(others, self.grid(notes["onset"][~known]))
        return notes.compress(known), number[known]

    def pitched_notes(self, pitches: range) -> tuple[NoteArray, IntArray]:
        """Return the notes of all tracks but drums, within pitches, and the track of each. [N]"""
        numbers = [None if track.is_drum else i for i, track in enumerate(self.score.tracks)]
        notes, track_of = self.numbered_notes(numbers, "notes of drums")
        inside = (notes["pitch"] >= pitches[0]) & (notes["pitch"] <= pitches[-1])
        names = f"{pitch_name(pitches[0])}-{pitch_name(pitches[-1])}"
        self.drop(f"notes outside {names}", self.grid(notes["onset"][~inside]))
        self.round(notes["onset"][inside], track_of[inside])
        return notes.compress(inside), track_of[inside]

    def inside(self, ticks: IntArray, nouns: str = "notes") -> tuple[IntArray, NDArray[np.bool_]]:
        """Return the grid steps of the events before `end`, and which they are; drop others."""
        step, (end, place) = self.grid(ticks), self.end
        inside = (step >= 0) & (step < end)
        self.drop(f"{nouns} beyond {place}", step[~inside])
        if nouns == "notes" and not inside.all():
            self.too_long = True
        return step[inside], inside

    def notes_inside(self, notes: NoteArray) -> tuple[IntArray, IntArray, NDArray[np.bool_]]:
        """Return onsets and durations of the notes before `end`, and which they are.

        Each lasts a grid step or more, and ends at `end` at the latest.
        """
        onset, inside = self.inside(notes["onset"])
        duration, (end, place) = self.grid(notes["duration"][inside]), self.end
        self.clip(f"notes lasting beyond {place}", onset[onset + duration > end])
        return onset, np.clip(duration, 1, end - onset), inside

    def summary(self, start: float = -np.inf, end: float = np.inf) -> QuantizationSummary:
        """Return the counts of the events that begin in the grid steps [start, end)."""

        def count(steps: IntArray) -> int:
            return int(np.count_nonzero((steps >= start) & (steps < end)))

        rules = [rule for rule, first, last in self._rules if first < end and last > start]
        if self.no_chords_until >= end:
            rules.append("no chord markers: no Chord tokens")
        summary = QuantizationSummary(count(self.read), count(self.kept))
        summary.rules = list(dict.fromkeys(rules))
        by_kind = {
            "dropped": summary.dropped,
            "clipped": summary.clipped,
            "changed": summary.changed,
        }
        for kind, reason, steps in self._events:
            if number := count(steps):
                counts = by_kind[kind]
                counts[reason] = counts.get(reason, 0) + number
        return summary
