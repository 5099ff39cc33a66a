"""What a printed score says, whatever its format, as a `Score`."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, TypeVar

import numpy as np

from musicgen.midi.score import (
    DEFAULT_VELOCITY,
    TEMPO,
    TICKS_PER_BEAT,
    KeySignature,
    Marker,
    Score,
    TimeSignature,
    Track,
    notes_from,
)

WHOLE = 4 * TICKS_PER_BEAT
MAX_BYTES = 2**25
"""Of a score, unzipped: of the songs in public corpora, the longest have a tenth."""

MAX_BARS = 20_000
"""Longer scores are damaged, or made to be long."""

Metre = tuple[int, int]
Value = TypeVar("Value", int, float)


class SheetNote(NamedTuple):
    """A note, or a part of one that ties join.

    Attributes:
        is_tied: to a note that ends where it begins.
        ties_on: to a note that begins where it ends.
    """

    onset: int
    duration: int
    pitch: int
    is_tied: bool = False
    ties_on: bool = False


@dataclass
class Sheet:
    """The bars, the parts and the signs of a printed score. Times are in ticks from its first bar.

    Attributes:
        tracks: the parts, without notes.
        notes: of each part, in the order in which they begin.
        bars: where each bar begins, and the metre in force.
        end: of the last bar.
        keys: of each staff that has pitches, its changes of key: tick, and fifths as they sound.
        tempos: tick, and quarter notes a minute.
        markers: chords and fermatas.
        repairs: what is left out, in words.
    """

    tracks: list[Track] = field(default_factory=list)
    notes: list[list[SheetNote]] = field(default_factory=list)
    bars: list[tuple[int, Metre]] = field(default_factory=list)
    end: int = 0
    keys: list[list[tuple[int, int]]] = field(default_factory=list)
    tempos: list[tuple[int, float]] = field(default_factory=list)
    markers: list[Marker] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)

    def score(self) -> Score:
        """Return the Score; an incomplete first bar begins with silence.

        Raises:
            ValueError: there is no note, or one that MIDI has no time or pitch for.
        """
        pitches = {note.pitch for part in self.notes for note in part}
        if not self.bars or not pitches:
            raise ValueError("no note")
        if self.end >= 2**28 or not pitches <= {*range(128)}:
            raise ValueError("past the last time or pitch of MIDI")
        if len(self.bars) > MAX_BARS:
            raise ValueError(f"more than {MAX_BARS:,} bars")
        metre = self.bars[0][1]
        first_end = self.bars[1][0] if len(self.bars) > 1 else bar_ticks(metre)
        pickup = max(0, bar_ticks(metre) - first_end)
        bars = [(0, metre)] * (pickup > 0) + [(tick + pickup, each) for tick, each in self.bars]

        def later(tick: int) -> int:
            return tick + pickup if tick > 0 else 0

        tracks = []
        for track, notes in zip(self.tracks, self.notes, strict=True):
            rows = [(at + pickup, length, p, v) for at, length, p, v in _join_ties(notes)]
            name, program, is_drum = track.name, track.program, track.is_drum
            tracks.append(Track(name, program, is_drum, notes_from(rows)))
        return Score(
            TICKS_PER_BEAT,
            tracks,
            np.array([(later(tick), bpm) for tick, bpm in _changes(self.tempos)], TEMPO),
            list(_time_signatures(bars, self.end + pickup)),
            [Marker(tick + pickup, text) for tick, text in sorted({*self.markers})],
            self.repairs,
            [KeySignature(later(tick), key) for tick, key in _common_keys(self.keys)],
        )


def bar_ticks(metre: Metre) -> int:
    """Return the ticks in a bar."""
    return WHOLE * metre[0] // metre[1]


def sounding_fifths(fifths: int, semitones: int) -> int:
    """Return the key signature that sounds where one is written for a transposing instrument."""
    moved = fifths + (7 * semitones + 6) % 12 - 6
    return moved - 12 if moved > 7 else moved + 12 if moved < -7 else moved


def _changes(events: Sequence[tuple[int, Value]]) -> list[tuple[int, Value]]:
    """Return events in order without those that repeat the one before, one for each tick."""
    last_of_tick = sorted(dict(events).items(), key=itemgetter(0))
    return [next(same) for _, same in groupby(last_of_tick, itemgetter(1))]


def _common_keys(staves: Sequence[Sequence[tuple[int, int]]]) -> list[tuple[int, int]]:
    """Return the changes of the key that most staves have, of several the higher staff's.

    A staff without any signature, such as that of a horn, counts only if no other has one.
    """
    changes = [_changes(staff) for staff in staves]
    signed = [each for each in changes if any(fifths for _, fifths in each)]
    events = [(tick, i, key) for i, each in enumerate(signed or changes) for tick, key in each]
    in_force, found = dict[int, int](), list[tuple[int, int]]()
    for tick, staff, fifths in sorted(events):
        in_force[staff] = fifths
        counts = Counter(in_force[i] for i in sorted(in_force))
        found.append((tick, counts.most_common(1)[0][0]))
    return _changes(found)


def _join_ties(notes: Sequence[SheetNote]) -> list[tuple[int, int, int, int]]:
    """Return onset, duration, pitch and velocity of notes, tied ones as one note."""
    rows = list[list[int]]()
    ending = defaultdict[tuple[int, int], list[tuple[bool, list[int]]]](list)
    for onset, duration, pitch, is_tied, ties_on in sorted(notes, key=itemgetter(0)):
        before = ending[pitch, onset]
        if is_tied and before:
            # Of several notes that end here, the one whose tie begins.
            place = next((i for i, (begins, _) in enumerate(before) if begins), 0)
            _, row = before.pop(place)
        else:
            row = [onset, 0, pitch, DEFAULT_VELOCITY]
            rows.append(row)
        row[1] += duration
        ending[pitch, onset + duration].append((ties_on, row))
    return [(onset, duration, pitch, velocity) for onset, duration, pitch, velocity in rows]


def _time_signatures(starts: Sequence[tuple[int, Metre]], end: int) -> Iterator[TimeSignature]:
    """Yield the changes of metre of bars, each with its first tick and printed metre."""
    bars = list[tuple[int, int, Metre]]()  # first tick and length
    for (tick, metre), after in zip(starts, [*(tick for tick, _ in starts[1:]), end], strict=True):
        length = after - tick
        if bars and bars[-1][1] + length <= bar_ticks(metre) and bars[-1][2] == metre:
            tick, before, _ = bars.pop()
            length += before
        if length:
            bars.append((tick, length, metre))
    last = None
    for tick, length, metre in bars:
        if tick == bars[-1][0]:  # it may be incomplete: nothing begins after it
            length = max(length, bar_ticks(metre))
        unit = metre[1]
        # A bar of one beat has two halves: programs that know no metre write 1/4.
        while (length * unit % WHOLE or length * unit == WHOLE) and unit < 64:
            unit *= 2
        while length * unit > 255 * WHOLE and unit > 1:  # the largest numerator of MIDI
            unit //= 2
        metre = -(-length * unit // WHOLE), unit
        if metre != last:
            yield TimeSignature(tick, *metre)
        last = metre if length * unit % WHOLE == 0 else None
