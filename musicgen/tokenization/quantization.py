"""Quantization of times and values, removal of overlaps between notes, and what both lose."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from musicgen.errors import ParameterError
from musicgen.midi import NoteArray, Score
from musicgen.midi.score import pitch_name
from musicgen.text import pluralize
from musicgen.tokenization.vocabulary import IntArray


class GridNotes(NamedTuple):
    """Columns of notes in grid steps, [num_notes] each; a voice plays one note at a time."""

    voice: IntArray
    onset: IntArray
    duration: IntArray
    velocity: IntArray


def to_grid(ticks: IntArray, steps_per_beat: int | IntArray, ticks_per_beat: int) -> IntArray:
    """Return the nearest grid step of each tick; halves round up."""
    return (2 * steps_per_beat * ticks + ticks_per_beat) // (2 * ticks_per_beat)


UNMOVED = np.array([[0, 2**40]] * 2)  # places at which ticks stay


def relocate(ticks: IntArray, places: IntArray) -> IntArray:
    """Return where ticks are, by old and new ones: between, time passes in both, or in one."""
    return np.interp(ticks, *places).round().astype(np.int64)


def in_time(score: Score) -> Score:
    """Return a played score with its onsets and ends at sixteenths, or at thirds of a beat.

    Thirds are for beats whose onsets are twice as near to them. A score of which half of the notes
    end at twelfths of a beat, as those of printed ones do, stays. If two thirds begin at sixteenths
    or thirds, it was printed and only its notes shortened: other 24ths, as of 3 against 2, stay.
    From where all end at twelfths, as what a model has added, notes stay and do not count.
    """
    beat, onset = score.ticks_per_beat, score.notes["onset"]
    end = onset + score.notes["duration"]

    def nearest(ticks: IntArray, per_beat: int | IntArray) -> IntArray:
        return to_grid(ticks, per_beat, beat) * beat // per_beat

    between = nearest(end, 12) != end
    last = end[between].max(initial=0)
    played = onset < last
    if 2 * np.count_nonzero(between) <= np.count_nonzero(played):
        return score
    away = np.array([np.abs(nearest(onset, each) - onset) for each in (4, 3, 24)])
    is_exact = 200 * away[:2, played].min(axis=0) < beat  # but for a rounded tick
    grids = 3 if 3 * np.count_nonzero(is_exact) >= 2 * len(is_exact) else 2
    size = end.max() // beat + 2  # beats, of which those without onsets have sixteenths
    far = [k * np.bincount(onset // beat, away[i], size) for i, k in enumerate((1, 2, 20))]
    grid = np.array([4, 3, 24])[np.argmin(far[:grids], axis=0)]
    grid[last // beat + 1 :] = 12
    found = score.moved(lambda ticks: nearest(ticks, grid[ticks // beat]), lambda ticks: ticks)
    for notes in (track.notes for track in found.tracks):
        notes["duration"] = np.maximum(notes["duration"], beat // grid[notes["onset"] // beat])
    if (200 * np.abs(found.notes["onset"] - onset) >= beat).any():
        found.repairs = [*found.repairs, "played rhythm read as sixteenths and triplets"]
    return found


@dataclass
class EncodingSummary:
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
        dropped = [f"{pluralize(n, reason)} dropped" for reason, n in self.dropped.items()]
        clipped = [f"{pluralize(n, reason)} clipped" for reason, n in self.clipped.items()]
        changed = [pluralize(n, reason) for reason, n in self.changed.items()]
        whole = f"all {pluralize(self.notes_read, 'notes')} kept" if self.notes_read else "no notes"
        kept = [whole] if self.notes_kept == self.notes_read else []
        return ", ".join(kept + dropped + clipped + changed + self.rules)


class Losses:
    """What an encoding loses of a piece, and where: by arrays of grid steps.

    Attributes:
        score: the piece, in whole bars if the tokens need them, see `in_whole_bars`.
        places: ticks of the piece, and where they are there, see `relocate`. [2, N]
        read, kept: where the notes begin that the piece has, and those that the tokens hold.
        no_chords_until: where the first chord is; 0 for vocabularies without chords.
        end: the grid step at which the last bar or beat that tokens may have ends, and its name.
        too_long: whether notes begin there or later.
    """

    end: tuple[int, str]

    def __init__(self, score: Score, steps_per_beat: int) -> None:
        self.score, self.steps_per_beat = score, steps_per_beat
        self.places = UNMOVED
        self.read = self.grid(score.notes["onset"])
        self.kept = self.read[:0]
        self.no_chords_until, self.too_long = 0.0, False
        self._events = list[tuple[str, str, IntArray]]()
        self._rules: list[tuple[str, float, float]] = []

    def grid(self, ticks: IntArray, per_step: int = 1) -> IntArray:
        """Return the nearest grid step of each tick of the piece, or of a part of a step."""
        return to_grid(ticks, per_step * self.steps_per_beat, self.score.ticks_per_beat)

    def numbered_notes(
        self, numbers: Sequence[int | None], others: str
    ) -> tuple[NoteArray, IntArray]:
        """Return the notes of the tracks that have a number, and the number of each. [N]

        Args:
            others: what the notes of the other tracks are, which are dropped.
        """
        sizes = [len(track.notes) for track in self.score.tracks]
        of_tracks = np.array([-1 if number is None else number for number in numbers], np.int64)
        notes, number = self.score.notes, np.repeat(of_tracks, sizes)
        known = number >= 0
        self.drop(others, self.grid(notes["onset"][~known]))
        return notes[known], number[known]

    def pitched_notes(self, pitches: range) -> tuple[NoteArray, IntArray]:
        """Return the notes of all tracks but drums, within pitches, and the track of each. [N]"""
        numbers = [None if track.is_drum else i for i, track in enumerate(self.score.tracks)]
        notes, track_of = self.numbered_notes(numbers, "notes of drums")
        inside = (notes["pitch"] >= pitches[0]) & (notes["pitch"] <= pitches[-1])
        names = f"{pitch_name(pitches[0])}-{pitch_name(pitches[-1])}"
        self.drop(f"notes outside {names}", self.grid(notes["onset"][~inside]))
        self.round(notes["onset"][inside], track_of[inside])
        return notes[inside], track_of[inside]

    def inside(self, ticks: IntArray, nouns: str = "notes") -> tuple[IntArray, NDArray[np.bool_]]:
        """Return the grid steps of the events before `end`, and which they are; drop others."""
        step, (end, place) = self.grid(ticks), self.end
        inside = (step >= 0) & (step < end)
        self.drop(f"{nouns} beyond {place}", step[~inside])
        self.too_long |= nouns == "notes" and not inside.all()
        return step[inside], inside

    def notes_inside(self, notes: NoteArray) -> tuple[IntArray, IntArray, NDArray[np.bool_]]:
        """Return onsets and durations of the notes before `end`, and which they are.

        Each has a grid step or more, and ends there at the latest.
        """
        onset, inside = self.inside(notes["onset"])
        duration, (end, place) = self.grid(notes["duration"][inside]), self.end
        self.clip(f"notes lasting beyond {place}", onset[onset + duration > end])
        return onset, np.clip(duration, 1, end - onset), inside

    def round(self, onset: IntArray, track: IntArray) -> None:
        """Record which onsets, in ticks, the grid moves far, and which it joins in their track."""
        beat = self.score.ticks_per_beat
        order = np.lexsort((onset, track))
        onset, track, step = onset[order], track[order], self.grid(onset[order])
        far = 10 * np.abs(step * beat - onset * self.steps_per_beat) >= 3 * beat  # as of triplets
        self._events.append(("changed", "onsets moved to the grid", step[far]))
        gap = np.diff(onset)
        joined = (np.diff(step) == 0) & (np.diff(track) == 0) & (24 * gap >= beat)
        self._events.append(("changed", "notes merged into chords", step[1:][joined]))

    def drop(self, reason: str, steps: IntArray) -> None:
        self._events.append(("dropped", reason, steps))

    def clip(self, reason: str, steps: IntArray) -> None:
        self._events.append(("clipped", reason, steps))

    def interpret(self, rule: str, start: float, end: float) -> None:
        """Record a rule that the music from one step to another is read by."""
        self._rules.append((rule, start, end))

    def summary(self, start: float = -np.inf, end: float = np.inf) -> EncodingSummary:
        """Return the losses among the events that begin in the grid steps [start, end)."""

        def count(steps: IntArray) -> int:
            return int(np.count_nonzero((steps >= start) & (steps < end)))

        rules = [rule for rule, first, last in self._rules if first < end and last > start]
        if self.no_chords_until >= end:
            rules.append("no chord markers: no Chord tokens")
        lost = dict[str, dict[str, int]](dropped={}, clipped={}, changed={})
        for kind, reason, steps in self._events:
            if number := count(steps):
                lost[kind][reason] = lost[kind].get(reason, 0) + number
        rules = list(dict.fromkeys(rules))
        return EncodingSummary(count(self.read), count(self.kept), rules=rules, **lost)


def remove_overlaps(notes: GridNotes, losses: Losses, unit: int = 1) -> GridNotes:
    """Make each voice play one note at a time; return the notes sorted by voice, then onset.

    Notes of one voice that begin together are merged into one with the longest duration and the
    highest velocity. A note ends at the latest where the next one of its voice begins.

    Args:
        unit: of the times, as a fraction of a grid step: 2 for half steps.
    """
    key = notes.voice * (notes.onset.max(initial=0) + 1) + notes.onset
    order = np.argsort(key)
    voice, onset = notes.voice[order], notes.onset[order]
    first = np.diff(key[order], prepend=-1) != 0
    losses.drop("notes doubling another", onset[~first] // unit)
    starts = np.flatnonzero(first)
    if not len(starts):
        return notes
    voice, onset = voice[starts], onset[starts]
    losses.kept = onset // unit
    duration = np.maximum.reduceat(notes.duration[order], starts)
    velocity = np.maximum.reduceat(notes.velocity[order], starts)

    gap = np.diff(onset)
    overlaps = (voice[1:] == voice[:-1]) & (duration[:-1] > gap)
    duration[:-1][overlaps] = gap[overlaps]
    losses.clip("notes struck again while sounding", onset[:-1][overlaps] // unit)
    return GridNotes(voice, onset, duration, velocity)


def parse_bins(
    name: str, bins: Sequence[int] | None, minimum: int, maximum: int, step: int | None = None
) -> range:
    """Return bins [lowest, highest, step], or [lowest, highest] with `step`; None: no bins."""
    if bins is None:
        return range(0)
    given = list(bins) if step is None else [*bins, step]
    low, high, width = given if len(given) == 3 else (0, 0, 0)
    if width < 1 or not minimum <= low <= high <= maximum or (high - low) % width:
        content = "[lowest, highest, step]" if step is None else "[lowest, highest]"
        bounds = f"within {minimum} and {maximum}, an integer number of steps apart"
        raise ParameterError(name, list(bins), f"expected {content} {bounds}")
    return range(low, high + 1, width)


def bin_edges(bins: Sequence[int], by_ratio: bool = False) -> NDArray[np.float64]:
    """Return the values between ascending bins from which on the higher one is nearer. [N - 1]

    Args:
        by_ratio: by the ratio of a value to a bin instead of their difference.
    """
    lower, upper = np.array(bins)[:-1], np.array(bins)[1:]
    return np.sqrt(lower * upper) if by_ratio else (lower + upper) / 2


def nearest_bin(values: NDArray[Any], bins: Sequence[int], by_ratio: bool = False) -> IntArray:
    """Return the index of the nearest bin, see `bin_edges`; 0 without bins."""
    return np.searchsorted(bin_edges(bins, by_ratio), values, side="right")


def find_changes(step: IntArray, value: IntArray) -> tuple[IntArray, IntArray]:
    """Return the last value of each step where it changes; the inputs are sorted by step."""
    last = np.append(step[1:] != step[:-1], np.ones(len(step[:1]), bool))
    step, value = step[last], value[last]
    differs = np.append(np.ones(len(value[:1]), bool), value[1:] != value[:-1])
    return step[differs], value[differs]
