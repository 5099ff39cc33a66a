"""`Score`, the framework's music type: integer ticks in numpy columns."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from musicgen.text import pluralize

TICKS_PER_BEAT = 480
"""Ticks in a quarter note of the scores that musicgen makes; files that are read keep their own."""

DEFAULT_VELOCITY = 80
"""Velocity of notes whose source has none: printed scores, and tokens without velocities."""

DEFAULT_TEMPO = 120.0
"""Quarter notes a minute where a source says nothing, as in MIDI files."""

PIANO, CHOIR_AAHS = 0, 52
"""The General MIDI programs of pianos, which files without programs have, and of voices."""

NOTE = np.dtype([("onset", "i8"), ("duration", "i8"), ("pitch", "i8"), ("velocity", "i8")])
"""Onset and duration in ticks, MIDI pitch and velocity 0–127."""

TEMPO = np.dtype([("tick", "i8"), ("bpm", "f8")])
"""A tempo change, in quarter notes per minute."""

PITCH_CLASSES = ("C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B")

DRUMS = "Drums"
PROGRAM_FAMILIES = (
    "Piano", "Chromatic percussion", "Organ", "Guitar", "Bass", "Strings", "Ensemble", "Brass",
    "Reed", "Pipe", "Synth lead", "Synth pad", "Synth effects", "Ethnic", "Percussive",
    "Sound effects",
)  # fmt: skip
"""General MIDI's families of eight programs each, in the order of the programs."""

NoteArray = NDArray[np.void]
IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
Move = Callable[[IntArray], IntArray]
"""Returns new ticks of ticks."""


class Marker(NamedTuple):
    """A text event. Chords are markers, such as `A_M7_E`: root, quality and optionally bass."""

    tick: int
    text: str


_CHORD = re.compile("[A-GN][#b]*_.+")  # the text of a chord's marker

FERMATA, DOUBLE_BAR = "Fermata", "Double bar"
"""The texts of the markers of a fermata, and of a double bar line, behind the bar that it ends."""
SIGNS = FERMATA, DOUBLE_BAR


class TimeSignature(NamedTuple):
    tick: int
    numerator: int
    denominator: int


class KeySignature(NamedTuple):
    """A key signature: sharps, or as a negative number flats, from -7 to 7.

    If it is not of a minor key, the mode is open: most programs write major for all keys.
    """

    tick: int
    fifths: int
    minor: bool = False


def beats_in_bar(signature: TimeSignature) -> int:
    """Return the number of quarters, of dotted quarters in 6/8 etc., or of eighths in 5/8 etc."""
    _, numerator, denominator = signature
    if denominator <= 4:
        return numerator * 4 // denominator
    return numerator // 3 if numerator % 3 == 0 else numerator


def pitch_name(pitch: int) -> str:
    """Return the name of a MIDI pitch; 60 is C4."""
    return f"{PITCH_CLASSES[pitch % 12]}{pitch // 12 - 1}"


def notes_from(rows: Iterable[tuple[int, int, int, int]]) -> NoteArray:
    """Build a sorted note array from rows of (onset, duration, pitch, velocity)."""
    return sort_notes(np.array(list(rows), dtype=NOTE))


def sort_notes(notes: NoteArray) -> NoteArray:
    """Return notes sorted by onset, pitch, duration and velocity."""
    place = (notes["onset"] << 8) + notes["pitch"]
    order = np.argsort(place, kind="stable")
    place = place.take(order)
    if (place[1:] == place[:-1]).any():  # rare; comparing all columns is five times as slow
        order = np.lexsort((notes["velocity"], notes["duration"], notes["pitch"], notes["onset"]))
    return notes.take(order)  # much faster than an index


def join_notes(arrays: Iterable[NoteArray]) -> NoteArray:
    """Concatenate arrays of notes."""
    raw = np.dtype((np.void, NOTE.itemsize))  # else numpy compares the names of columns
    return np.concatenate([each.view(raw) for each in (np.empty(0, NOTE), *arrays)]).view(NOTE)


@dataclass
class Track:
    """The notes of one instrument."""

    name: str = ""
    program: int = 0
    is_drum: bool = False
    notes: NoteArray = field(default_factory=lambda: np.empty(0, NOTE))

    def __eq__(self, other: object) -> bool:
        """Compare name, program, drum flag and notes in any order."""
        if not isinstance(other, Track):
            return NotImplemented
        plain = ({**vars(t), "notes": sort_notes(t.notes).tolist()} for t in (self, other))
        return next(plain) == next(plain)


@dataclass(repr=False)
class Score:
    """A piece of music, with events sorted by tick.

    Attributes:
        ticks_per_beat: ticks in a quarter note.
        tempos: `TEMPO` array; empty if the source has none (120 bpm by default).
        time_signatures: empty if the source has none (4/4 by default).
        key_signatures: empty if the source has none.
        repairs: changes made while reading a damaged file, in words; ignored by ==.
    """

    ticks_per_beat: int = TICKS_PER_BEAT
    tracks: list[Track] = field(default_factory=list)
    tempos: NDArray[np.void] = field(default_factory=lambda: np.empty(0, TEMPO))
    time_signatures: list[TimeSignature] = field(default_factory=list)
    markers: list[Marker] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)
    key_signatures: list[KeySignature] = field(default_factory=list)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Score):
            return NotImplemented
        plain = ({**vars(s), "tempos": s.tempos.tolist(), "repairs": None} for s in (self, other))
        return next(plain) == next(plain)

    def __repr__(self) -> str:
        """Return one line, such as `Score(3 tracks, 1,204 notes, 64 bars, 3/4, 96 bpm)`."""
        sizes = {"tracks": len(self.tracks), "notes": self.num_notes}
        sizes["bars"] = self.num_bars
        parts = [pluralize(count, nouns) for nouns, count in sizes.items()]
        _, numerator, denominator = self.first_time_signature()
        parts.append(f"{numerator}/{denominator}")
        if len(self.tempos):
            parts.append(f"{self.tempos['bpm'][0]:g} bpm")
        return f"Score({', '.join(parts)})"

    def time_signature_at(self, tick: int) -> TimeSignature:
        """Return the time signature in force at a tick: 4/4 before the first."""
        before = [signature for signature in self.time_signatures if signature.tick <= tick]
        return before[-1] if before else TimeSignature(0, 4, 4)

    def time_signatures_from_start(self) -> list[TimeSignature]:
        """Return the time signatures from tick 0 on: 4/4 before the first."""
        return [self.time_signature_at(0), *(s for s in self.time_signatures if s.tick > 0)]

    def first_time_signature(self) -> TimeSignature:
        """Return the time signature of the first note; of the next bar if its own is incomplete."""
        signatures = self.time_signatures_from_start()
        for signature, following in pairwise(signatures):
            if following.tick - signature.tick >= self.bar_ticks(following) and (
                following.tick > self.start
            ):
                return signature
        return signatures[-1]

    def bar_ticks(self, signature: TimeSignature) -> int:
        """Return the ticks in a bar of a time signature."""
        return max(1, self.ticks_per_beat * 4 * signature.numerator // signature.denominator)

    @property
    def notes(self) -> NoteArray:
        """The notes of all tracks, one track after the other. [num_notes]"""
        return join_notes(track.notes for track in self.tracks)

    @property
    def num_notes(self) -> int:
        return sum(len(track.notes) for track in self.tracks)

    @property
    def start(self) -> int:
        """Tick at which the first note begins; 0 without notes."""
        onsets = [int(track.notes["onset"].min()) for track in self.tracks if len(track.notes)]
        return min(onsets, default=0)

    @property
    def end(self) -> int:
        """Tick at which the last note ends, 0 without notes; notes last at least a tick."""
        ends = (x.notes["onset"] + np.maximum(x.notes["duration"], 1) for x in self.tracks)
        return int(max((end.max(initial=0) for end in ends), default=0))

    def seconds_at(self, ticks: int | IntArray) -> FloatArray:
        """Convert ticks to seconds, at the tempi; at 120 bpm before the first."""
        change = np.append(0, self.tempos["tick"])
        tick_length = 60 / (np.append(DEFAULT_TEMPO, self.tempos["bpm"]) * self.ticks_per_beat)
        change_time = np.append(0, np.cumsum(np.diff(change) * tick_length[:-1]))
        index = np.searchsorted(change, ticks, side="right") - 1
        return change_time[index] + (ticks - change[index]) * tick_length[index]

    def bar_starts(self, max_bars: int = 4096) -> IntArray:
        """Return the ticks at which bars begin, until the last note ends. [num_bars >= 1]

        Every time signature has at most `max_bars`: damaged files may have gaps of millions.
        """
        signatures, end = self.time_signatures_from_start(), max(1, self.end)
        edges = [s.tick for s in signatures[1:]] + [end]
        spans = []
        for s, edge in zip(signatures, edges, strict=True):
            bar = self.bar_ticks(s)
            spans.append(np.arange(s.tick, min(edge, end, s.tick + bar * max_bars), bar))
        return np.concatenate(spans).astype(np.int64)

    def bar_lines(self) -> IntArray:
        """Return the ticks at which bars begin, and at which the last one ends. [num_bars + 1]"""
        starts = self.bar_starts()
        last = int(starts[-1])
        return np.append(starts, last + self.bar_ticks(self.time_signature_at(last)))

    @property
    def has_upbeat(self) -> bool:
        """Whether the first bar has a time signature of its own, shorter than the next bar's."""
        second = int(self.bar_lines()[1])
        return second < self.bar_ticks(self.time_signature_at(second))

    @property
    def num_bars(self) -> int:
        """How many bars there are until the last note begins; 0 without notes."""
        onsets = self.notes["onset"]
        if not len(onsets):
            return 0
        return int(np.searchsorted(self.bar_starts(), onsets.max(), side="right"))

    def mean_tempos(self, bars: int = 1) -> NDArray[np.void]:
        """Return the mean tempo of each bar, or of several. `TEMPO`"""
        lines = self.bar_lines()
        lines = np.append(lines[:-1:bars], lines[-1])
        seconds = np.diff(self.seconds_at(lines))
        tempos = np.empty(len(seconds), TEMPO)
        tempos["tick"] = lines[:-1]
        tempos["bpm"] = 60 * (np.diff(lines) / self.ticks_per_beat) / seconds
        return tempos

    def moved(
        self, move: Move, move_event: Move | None = None, move_end: Move | None = None
    ) -> Score:
        """Return the score with its events at other ticks.

        Args:
            move: returns the new ticks of onsets, and by default of all else.
            move_event: of tempi, metres, markers and keys.
            move_end: of ends of notes, which come a tick or more after their onsets.
        """
        move_event, move_end = move_event or move, move_end or move

        def moved(events: list[Any]) -> list[Any]:
            ticks = move_event(np.array([each.tick for each in events], np.int64)).tolist()
            return [e._replace(tick=tick) for e, tick in zip(events, ticks, strict=True)]

        tracks = []
        for track in self.tracks:
            notes = track.notes.copy()
            notes["onset"] = move(notes["onset"])
            end = move_end(track.notes["onset"] + notes["duration"])
            notes["duration"] = np.maximum(end - notes["onset"], 1)
            tracks.append(replace(track, notes=notes))
        tempos = self.tempos.copy()
        tempos["tick"] = move_event(tempos["tick"])
        return replace(
            self,
            tracks=tracks,
            tempos=tempos,
            time_signatures=moved(self.time_signatures),
            markers=moved(self.markers),
            key_signatures=moved(self.key_signatures),
        )

    def clip(self, start: int, end: int) -> Score:
        """Return the notes that begin in the ticks [start, end), moved to tick 0.

        The tempo, time signature, key signature and chord in force at `start` apply from tick 0.
        Notes that sound past `end` keep their duration.
        """

        def inside(events: list[Any]) -> list[Any]:
            before = [e for e in events if e.tick <= start]
            return before[-1:] + [e for e in events if start < e.tick < end]

        tracks = []
        for track in self.tracks:
            onset = track.notes["onset"]
            tracks.append(replace(track, notes=track.notes[(onset >= start) & (onset < end)]))
        first = max(0, int(np.searchsorted(self.tempos["tick"], start, "right")) - 1)
        tempos = self.tempos[first:]
        chord = [m for m in self.markers if m.tick <= start and _CHORD.fullmatch(m.text)][-1:]
        kept = replace(
            self,
            tracks=tracks,
            tempos=tempos[tempos["tick"] < end],
            time_signatures=inside(self.time_signatures),
            markers=[m for m in self.markers if m in chord or start <= m.tick < end],
            key_signatures=inside(self.key_signatures),
        )
        return kept.moved(lambda ticks: np.maximum(ticks - start, 0))


def role(track: Track) -> str:
    """Return `Drums` for a drum track, otherwise the family of the track's program.

    The name of a track does not count: files name the same part `Piano`, `piano` or `MELODY`.
    """
    return DRUMS if track.is_drum else PROGRAM_FAMILIES[track.program // 8]


def names_drums(name: str, program: int) -> bool:
    """Return whether a track is named as drums are, and has no instrument's program."""
    words = r"drums?( ?(set|kit)s?)?|kit|percussion"
    return program == 0 and re.fullmatch(words, name.strip().lower()) is not None


def is_line(notes: NoteArray) -> bool:
    """Return whether notes [num_notes] are a line, such as a tune: nearly all sound one by one.

    A note may sound into the next, as played legato does, but not to the one after that. Up to a
    tenth of the notes may be those of chords.
    """
    ordered = sort_notes(notes)
    onset, end = ordered["onset"], ordered["onset"] + ordered["duration"]
    together = np.diff(onset) == 0
    held = end[:-2] > onset[2:]
    return len(notes) > 0 and 10 * int(together.sum() + held.sum()) <= len(notes)


def notes_by_role(score: Score) -> dict[str, NoteArray]:
    """Return the notes of all tracks of each role, in the order of the tracks."""
    notes: defaultdict[str, list[NoteArray]] = defaultdict(list)
    for track in score.tracks:
        notes[role(track)].append(track.notes)
    return {name: join_notes(parts) for name, parts in notes.items()}


def pitched_notes(score: Score) -> NoteArray:
    """Return the notes of all tracks but drums, sorted. [num_notes]"""
    tracks = [track.notes for track in score.tracks if not track.is_drum]
    return sort_notes(join_notes(tracks))
