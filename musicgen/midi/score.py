"""`Score`, the only music type inside the framework: integer ticks in numpy columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

NOTE = np.dtype([("onset", "i8"), ("duration", "i8"), ("pitch", "i8"), ("velocity", "i8")])
"""One note: onset and duration in ticks, MIDI pitch and velocity 0–127."""

TEMPO = np.dtype([("tick", "i8"), ("bpm", "f8")])
"""One tempo change, in quarter notes per minute."""

NoteArray = NDArray[np.void]
TempoArray = NDArray[np.void]


class Marker(NamedTuple):
    """A text event. Chords are markers, such as `A_M7_E`: root, quality and optionally bass."""

    tick: int
    text: str


class TimeSignature(NamedTuple):
    tick: int
    numerator: int
    denominator: int


def notes_from(rows: Iterable[tuple[int, int, int, int]]) -> NoteArray:
    """Rows of (onset, duration, pitch, velocity) as one note array, sorted by onset, then pitch."""
    return sort_notes(np.array(list(rows), dtype=NOTE))


def sort_notes(notes: NoteArray) -> NoteArray:
    """Notes in canonical order: onset, pitch, duration, velocity."""
    return notes[np.lexsort((notes["velocity"], notes["duration"], notes["pitch"], notes["onset"]))]


@dataclass
class Track:
    """The notes of one instrument."""

    name: str = ""
    program: int = 0
    is_drum: bool = False
    notes: NoteArray = field(default_factory=lambda: np.empty(0, NOTE))

    def __eq__(self, other: object) -> bool:
        """Equal name, program and drum flag, and equal notes in whatever order."""
        if not isinstance(other, Track):
            return NotImplemented
        return (self.name, self.program, self.is_drum) == (
            other.name,
            other.program,
            other.is_drum,
        ) and np.array_equal(sort_notes(self.notes), sort_notes(other.notes))


@dataclass
class Score:
    """A piece of music.

    Attributes:
        ticks_per_beat: ticks in a quarter note.
        tracks: the instruments, in file order.
        tempos: `TEMPO` array sorted by tick; empty if the source has none (120 bpm by default).
        time_signatures: sorted by tick; empty if the source has none (4/4 by default).
        markers: sorted by tick.
        repairs: what reading had to mend, in words; no part of the music.
    """

    ticks_per_beat: int = 480
    tracks: list[Track] = field(default_factory=list)
    tempos: TempoArray = field(default_factory=lambda: np.empty(0, TEMPO))
    time_signatures: list[TimeSignature] = field(default_factory=list)
    markers: list[Marker] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Score):
            return NotImplemented
        return (
            self.ticks_per_beat == other.ticks_per_beat
            and self.tracks == other.tracks
            and np.array_equal(self.tempos, other.tempos)
            and self.time_signatures == other.time_signatures
            and self.markers == other.markers
        )

    @property
    def num_notes(self) -> int:
        return sum(len(track.notes) for track in self.tracks)

    @property
    def end(self) -> int:
        """The tick at which the last note ends; 0 without notes."""
        ends = [
            int((t.notes["onset"] + t.notes["duration"]).max()) for t in self.tracks if len(t.notes)
        ]
        return max(ends, default=0)

    def bar_starts(self, max_bars: int = 4096) -> NDArray[np.int64]:
        """Ticks at which bars begin by the time signatures, until the last note ends. [num_bars]

        The first bar is there even without notes. At most `max_bars` for each time signature: a
        broken file may hold a gap of millions.
        """
        signatures = list(self.time_signatures)
        if not signatures or signatures[0].tick > 0:
            signatures.insert(0, TimeSignature(0, 4, 4))
        end = max(1, self.end)
        edges = [s.tick for s in signatures[1:]] + [end]
        spans = []
        for s, edge in zip(signatures, edges, strict=True):
            bar = max(1, self.ticks_per_beat * 4 * s.numerator // s.denominator)
            spans.append(np.arange(s.tick, min(edge, end, s.tick + bar * max_bars), bar))
        return np.unique(np.concatenate(spans)).astype(np.int64)

    def clip(self, start: int, end: int) -> Score:
        """The music whose notes begin in the ticks [start, end), moved to tick 0.

        Tempo, metre and the last marker in force at `start` are carried to tick 0;
        notes that sound past `end` keep their duration.
        """

        def clip_events(events: list[Any]) -> list[Any]:
            before = [e for e in events if e.tick <= start]
            inside = [e for e in events if start < e.tick < end]
            return [e._replace(tick=max(0, e.tick - start)) for e in before[-1:] + inside]

        tracks = []
        for track in self.tracks:
            onset = track.notes["onset"]
            notes = track.notes[(onset >= start) & (onset < end)].copy()
            notes["onset"] -= start
            tracks.append(Track(track.name, track.program, track.is_drum, notes))
        first = max(0, int(np.searchsorted(self.tempos["tick"], start, "right")) - 1)
        tempos = self.tempos[first:]
        tempos = tempos[tempos["tick"] < end].copy()
        tempos["tick"] = np.maximum(tempos["tick"] - start, 0)
        return Score(
            self.ticks_per_beat,
            tracks,
            tempos,
            clip_events(self.time_signatures),
            clip_events(self.markers),
        )
