"""Quantization: rounding of times and values to those of a vocabulary, and the report of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from musicgen.errors import ParameterError
from musicgen.midi import NoteArray, Score
from musicgen.midi.score import pitch_name
from musicgen.text import pluralize
from musicgen.tokenization.vocabulary import BoolArray, IntArray

UNMOVED = np.array([[0, 2**40]] * 2)
"""The tick map of music that is not moved, see `relocate`."""

_COSTS = {4: 1, 3: 2, 24: 20}
"""Grids of played rhythms, in steps per beat: sixteenths, triplets and finer ones.

The grid of a beat is the one with the smallest sum of distances, times its cost.
"""

_ADDED = 12  # steps per beat of notes that a model has added


def to_grid(ticks: IntArray, steps_per_beat: int | IntArray, ticks_per_beat: int) -> IntArray:
    """Return the nearest grid step of each tick; halves round up."""
    return (2 * steps_per_beat * ticks + ticks_per_beat) // (2 * ticks_per_beat)


def relocate(ticks: IntArray, tick_map: IntArray) -> IntArray:
    """Return the new ticks of music that was moved.

    Args:
        tick_map: ascending old and new ticks. Between two of them the time passes evenly in
            both, or stands still in one. [2, N]
    """
    return np.interp(ticks, *tick_map).round().astype(np.int64)


def parse_bins(
    name: str, bins: Sequence[int] | None, minimum: int, maximum: int, step: int | None = None
) -> range:
    """Return bins [lowest, highest, step], or [lowest, highest] with `step`.

    Without `step`, None means no bins.
    """
    if bins is None and step is None:
        return range(0)
    numbers = list(bins) if isinstance(bins, Iterable) else []
    given = numbers if step is None else [*numbers, step]
    is_valid = len(given) == 3 and all(isinstance(each, Integral) for each in given)
    low, high, width = given if is_valid else (0, 0, 0)
    if width < 1 or not minimum <= low <= high <= maximum or (high - low) % width:
        content = "[lowest, highest, step]" if step is None else "[lowest, highest]"
        bounds = f"within {minimum} and {maximum}, an integer number of steps apart"
        raise ParameterError(name, numbers or bins, f"expected {content} {bounds}")
    return range(low, high + 1, width)


def ratio_bins(bins: Sequence[int]) -> list[int]:
    """Return whole numbers from the first to the second, as many as the third."""
    numbers = list(bins) if isinstance(bins, Iterable) else []
    is_valid = len(numbers) == 3 and all(isinstance(each, Integral) for each in numbers)
    low, high, number = numbers if is_valid else (0, 0, 0)
    is_valid = 4 <= low <= high <= 1000 and number > 0
    values = np.geomspace(low, high, number).round().astype(int).tolist() if is_valid else []
    if not values or len(set(values)) < number:
        expected = "expected [lowest, highest, number] within 4 and 1000, all different"
        raise ParameterError("tempo_bins", numbers or bins, expected)
    return values


def bin_edges(bins: Sequence[int], by_ratio: bool = False) -> NDArray[np.float64]:
    """Return the lowest value that is nearest to each bin but the first. [N - 1]

    Args:
        bins: ascending.
        by_ratio: by the ratio of a value to a bin instead of their difference.
    """
    lower, upper = np.array(bins)[:-1], np.array(bins)[1:]
    return np.sqrt(lower * upper) if by_ratio else (lower + upper) / 2


def nearest_bin(values: NDArray[Any], bins: Sequence[int], by_ratio: bool = False) -> IntArray:
    """Return the index of the nearest bin, see `bin_edges`; 0 without bins."""
    return np.searchsorted(bin_edges(bins, by_ratio), values, side="right")


def find_changes(step: IntArray, value: IntArray) -> tuple[IntArray, IntArray]:
    """Return the last value of each step where it changes.

    Args:
        step, value: sorted by step; no value is negative. [N]
    """
    last = np.ones(len(step), bool)
    np.not_equal(step[1:], step[:-1], out=last[:-1])
    step, value = step[last], value[last]
    differs = np.ones(len(value), bool)
    np.not_equal(value[1:], value[:-1], out=differs[1:])
    return step[differs], value[differs]


def end_before_next(voice: IntArray, onset: IntArray, duration: IntArray) -> IntArray:
    """Return durations with which no note sounds into the next note of its voice.

    Args:
        voice, onset, duration: of notes sorted by voice, then onset. [num_notes]
    """
    shorter = duration.copy()
    gap = np.diff(onset)
    overlaps = (voice[1:] == voice[:-1]) & (duration[:-1] > gap)
    shorter[:-1][overlaps] = gap[overlaps]
    return shorter


@dataclass
class QuantizationSummary:
    """Number of notes kept, dropped and clipped, and interpretations of the piece.

    Attributes:
        dropped, clipped, changed: number of events by reason, which begins with a plural noun.
        rules: interpretations that concern the whole piece, such as `3/4 read as 4/4`.
    """

    notes_read: int = 0
    notes_kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    clipped: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
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
        for counts, verb in (
            (self.dropped, " dropped"),
            (self.clipped, " clipped"),
            (self.changed, ""),
        ):
            parts += [f"{pluralize(count, reason)}{verb}" for reason, count in counts.items()]
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

    def __init__(self, score: Score, steps_per_beat: int, tick_map: IntArray = UNMOVED) -> None:
        self.score, self.steps_per_beat, self.tick_map = score, steps_per_beat, tick_map
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
        """Record a rule for reading the music from one grid step to another."""
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
    ) -> tuple[NoteArray, IntArray, IntArray]:
        """Return the notes of the tracks that have a number, their numbers and tracks. [N] each

        Args:
            numbers: of each track; None: its notes are dropped.
            others: what the dropped notes are.
        """
        sizes = [len(track.notes) for track in self.score.tracks]
        of_tracks = np.array([-1 if number is None else number for number in numbers], np.int64)
        notes, track = self.score.notes, np.repeat(np.arange(len(sizes)), sizes)
        known = of_tracks[track] >= 0
        self.drop(others, self.grid(notes["onset"][~known]))
        return notes.compress(known), of_tracks[track[known]], track[known]

    def pitched_notes(self, pitches: range) -> tuple[NoteArray, IntArray]:
        """Return the notes of all tracks but drums, within pitches, and the track of each. [N]"""
        numbers = [None if track.is_drum else i for i, track in enumerate(self.score.tracks)]
        notes, track_of, _ = self.numbered_notes(numbers, "notes of drums")
        inside = (notes["pitch"] >= pitches[0]) & (notes["pitch"] <= pitches[-1])
        names = f"{pitch_name(pitches[0])}-{pitch_name(pitches[-1])}"
        self.drop(f"notes outside {names}", self.grid(notes["onset"][~inside]))
        self.round(notes["onset"][inside], track_of[inside])
        return notes.compress(inside), track_of[inside]

    def inside(self, ticks: IntArray, nouns: str = "notes") -> tuple[IntArray, BoolArray]:
        """Return the grid steps of the events before `end`, and which they are; drop others."""
        step, (end, place) = self.grid(ticks), self.end
        inside = (step >= 0) & (step < end)
        self.drop(f"{nouns} beyond {place}", step[~inside])
        if nouns == "notes" and not inside.all():
            self.too_long = True
        return step[inside], inside

    def notes_inside(self, notes: NoteArray) -> tuple[IntArray, IntArray, BoolArray]:
        """Return onsets and durations of the notes before `end`, and which they are.

        Each lasts a grid step or more, and ends at `end` at the latest.
        """
        onset, inside = self.inside(notes["onset"])
        duration, (end, place) = self.grid(notes["duration"][inside]), self.end
        self.clip(f"notes lasting beyond {place}", onset[onset + duration > end])
        return onset, np.clip(duration, 1, end - onset), inside

    def remove_overlaps(
        self,
        voice: IntArray,
        onset: IntArray,
        duration: IntArray,
        velocity: IntArray,
        track: IntArray,
        unit: int = 1,
    ) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Make each voice play one note at a time.

        Notes of one voice that begin together are merged into one with the longest duration and the
        highest velocity. A note ends at the latest where the next one of its voice begins.

        Args:
            track: of the piece; notes of several tracks are in unison, others are duplicates. [N]
            unit: of the times, as a fraction of a grid step: 2 for half steps.

        Returns:
            Voice, onset, duration and velocity of the notes, sorted by voice, then onset. [N]
        """
        key = voice * (onset.max(initial=0) + 1) + onset
        order = np.lexsort((track, key))
        voice, onset = voice[order], onset[order]
        first = np.diff(key[order], prepend=-1) != 0
        same_track = ~first & (np.diff(track[order], prepend=-1) == 0)
        self.drop("notes doubling another", onset[same_track] // unit)
        unison = onset[~first & ~same_track] // unit
        self._events.append(("changed", "notes in unison with another track read as one", unison))
        starts = np.flatnonzero(first)
        voice, onset = voice[starts], onset[starts]
        self.kept = onset // unit
        longest = np.maximum.reduceat(duration[order], starts)
        shorter = end_before_next(voice, onset, longest)
        self.clip("notes struck again while sounding", onset[shorter < longest] // unit)
        return voice, onset, shorter, np.maximum.reduceat(velocity[order], starts)

    def summary(self, start: float = -np.inf, end: float = np.inf) -> QuantizationSummary:
        """Return the counts of the events that begin in the grid steps [start, end)."""

        def count(steps: IntArray) -> int:
            return int(np.count_nonzero((steps >= start) & (steps < end)))

        rules = [rule for rule, first, last in self._rules if first < end and last > start]
        if self.no_chords_until >= end:
            rules.append("no chord markers: no Chord tokens")
        summary = QuantizationSummary(count(self.read), count(self.kept))
        summary.rules = list(dict.fromkeys(rules))
        for kind, reason, steps in self._events:
            if number := count(steps):
                getattr(summary, kind)[reason] += number
        return summary


def printed_rhythm(score: Score) -> Score:
    """Return a played score with its onsets and ends at sixteenths, or at thirds of a beat.

    A beat has thirds if its onsets are twice as near to them as to sixteenths.

    A score stays as it is if half of its notes end at twelfths of a beat: it was printed. If two
    thirds of the onsets are at sixteenths or thirds, it was printed and only its notes were
    shortened: onsets at other 24ths stay, such as those of 3 against 2. If all notes after some
    tick end at twelfths, a model has added them: they are left alone, and do not count.
    """
    beat, onset = score.ticks_per_beat, score.notes["onset"]
    end = onset + score.notes["duration"]

    def nearest(ticks: IntArray, per_beat: int | IntArray) -> IntArray:
        return to_grid(ticks, per_beat, beat) * beat // per_beat

    off_twelfths = nearest(end, _ADDED) != end
    last = end[off_twelfths].max(initial=0)
    played = onset < last
    if 2 * np.count_nonzero(off_twelfths) <= np.count_nonzero(played):
        return score
    grids = list(_COSTS)
    distances = [np.abs(nearest(onset, grid) - onset) for grid in grids]
    coarse = np.minimum(distances[0], distances[1])[played]
    is_exact = 200 * coarse < beat  # a 200th of a beat: more than a rounded tick
    if 3 * np.count_nonzero(is_exact) < 2 * len(is_exact):
        grids = grids[:2]
    num_beats = end.max() // beat + 2
    costs = [
        _COSTS[grid] * np.bincount(onset // beat, distance, num_beats)
        for grid, distance in zip(grids, distances, strict=False)
    ]
    grid_of_beat = np.array(grids)[np.argmin(costs, axis=0)]  # sixteenths without onsets
    grid_of_beat[last // beat + 1 :] = _ADDED

    found = score.moved(
        lambda ticks: nearest(ticks, grid_of_beat[ticks // beat]),
        lambda ticks: ticks,
    )
    for track in found.tracks:
        step = beat // grid_of_beat[track.notes["onset"] // beat]
        track.notes["duration"] = np.maximum(track.notes["duration"], step)
    if (200 * np.abs(found.notes["onset"] - onset) >= beat).any():
        found.repairs = [*found.repairs, "played rhythm read as sixteenths and triplets"]
    return found
