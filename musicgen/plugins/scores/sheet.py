"""The parts of a printed score, joined bar by bar as a `Sheet`, and as a `Score`."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import groupby, islice, pairwise
from operator import itemgetter
from statistics import mode
from typing import TypeVar

import numpy as np

from musicgen.midi.score import (
    DEFAULT_VELOCITY,
    FERMATA,
    TEMPO,
    TICKS_PER_BEAT,
    KeySignature,
    Marker,
    Score,
    TimeSignature,
    Track,
    notes_from,
)
from musicgen.plugins.scores.bars_and_repeats import (
    MAX_BARS,
    Bar,
    Metre,
    Note,
    PrintedKey,
    play_order,
)
from musicgen.text import pluralize

WHOLE = 4 * TICKS_PER_BEAT
LONGEST_BAR = 255 * WHOLE
"""No time signature of MIDI has a longer one."""

KeyChange = tuple[int, PrintedKey]  # with its tick
Value = TypeVar("Value", PrintedKey, float)


@dataclass
class Sheet:
    """The bars, the parts and the signs of a printed score. Times are in ticks from its first bar.

    Attributes:
        tracks: the parts, without notes.
        notes: of each part.
        bars: where each bar begins, and the metre in force.
        end: of the last bar.
        keys: of each staff, its changes of key: tick, and signature as it sounds.
        tempos: tick, and quarter notes a minute.
        markers: part, tick, and the text of a chord, a fermata or a double bar.
        repairs: what is left out, in words.
        num_guessed: drums whose instrument the file does not tell.
        is_divided: the first bar is printed in pieces, so that the first piece is no upbeat.
    """

    tracks: list[Track] = field(default_factory=list)
    notes: list[list[Note[int]]] = field(default_factory=list)
    bars: list[tuple[int, Metre]] = field(default_factory=list)
    end: int = 0
    keys: list[list[KeyChange]] = field(default_factory=list)
    tempos: list[tuple[int, float]] = field(default_factory=list)
    markers: list[tuple[int, int, str]] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)
    num_guessed: int = 0
    is_divided: bool = False

    def score(self) -> Score:
        """Return the Score; an incomplete first bar begins with silence.

        Bars of more than 1,020 quarters become bars of the metre in force. Fermatas are those of
        the highest part that has one.

        Raises:
            ValueError: there is no note, or one that MIDI has no time or pitch for.
        """
        self._check()
        metre = self.bars[0][1]
        first_end = self.bars[1][0] if len(self.bars) > 1 else bar_ticks(metre)
        pickup = 0 if self.is_divided else max(0, bar_ticks(metre) - first_end)
        bars = [(0, metre), *((tick + pickup, each) for tick, each in self.bars[1:])]

        def later(tick: int) -> int:
            return tick + pickup if tick > 0 else 0

        tracks = []
        for track, part in zip(self.tracks, self.notes, strict=True):
            notes = notes_from(_join_ties(part))
            notes["onset"] += pickup
            tracks.append(replace(track, notes=notes))
        highest = min((part for part, _, text in self.markers if text == FERMATA), default=0)
        markers = {
            Marker(tick + pickup, text)
            for part, tick, text in self.markers
            if text != FERMATA or part == highest
        }
        if self.num_guessed:
            what = "drums without an instrument placed by their lines"
            self.repairs.insert(0, f"{self.num_guessed:,} {what}")
        ticks = [*(tick for tick, _ in bars), self.end + pickup]
        if num_long := sum(after - tick > LONGEST_BAR for tick, after in pairwise(ticks)):
            self.repairs.append(pluralize(num_long, "bars of more than 1,020 quarters divided"))
        return Score(
            TICKS_PER_BEAT,
            tracks,
            np.array([(later(tick), bpm) for tick, bpm in _changes(self.tempos)], TEMPO),
            list(_time_signatures(bars, self.end + pickup)),
            sorted(markers),
            self.repairs,
            [
                KeySignature(later(tick), key.fifths, key.minor)
                for tick, key in _common_keys(self.keys)
            ],
        )

    def _check(self) -> None:
        """Raise ValueError unless there are notes, all within MIDI's limits."""
        if len(self.bars) > MAX_BARS:
            raise ValueError(f"more than {MAX_BARS:,} bars")
        pitches = {note.pitch for part in self.notes for note in part}
        if not self.bars or not pitches:
            raise ValueError("no note")
        for over, below in {metre for _, metre in self.bars}:
            if bar_ticks((over, below)) > LONGEST_BAR:
                raise ValueError(f"a time signature of {over}/{below}")
        if self.end + LONGEST_BAR >= 2**28 or not pitches <= {*range(128)}:
            raise ValueError("past the last time or pitch of MIDI")


def is_divided(lengths: Iterable[int], metre: Metre) -> bool:
    """Return whether the first bars are pieces of one bar, and another follows.

    Args:
        lengths: of the bars, in ticks.
        metre: of the first.
    """
    total = 0
    for number, length in enumerate(lengths):
        if total >= bar_ticks(metre):
            return total == bar_ticks(metre) and number > 1
        total += length
    return False


def join_parts(parts: Sequence[tuple[Track, list[Bar]]], repeats: bool) -> Sheet:
    """Join parts bar by bar: bars of the same number begin together.

    A bar is as long as in the part in which it is longest.

    Args:
        repeats: whether repeats are expanded.
    """
    sheet = Sheet([track for track, _ in parts], [[] for _ in parts], keys=[[] for _ in parts])
    longest = max((bars for _, bars in parts), key=len, default=[])
    order: Iterable[int] = range(len(longest))
    if repeats:
        for _, part in parts:  # most files have the marks in the first alone
            for bar, same in zip(longest, part, strict=False):
                bar.marks = same.marks | bar.marks
        order = play_order(longest)

    def bars_at(index: int) -> list[tuple[int, Bar]]:
        return [(i, part[index]) for i, (_, part) in enumerate(parts) if index < len(part)]

    def length_at(index: int) -> Fraction:
        return max(bar.length for _, bar in bars_at(index))

    start, metre = Fraction(0), (4, 4)
    for index in islice(order, MAX_BARS + 1):
        bars, length = bars_at(index), length_at(index)
        own = next((bar.metre for _, bar in bars if bar.metre), None)
        metre = own or _metre_of(length) or metre
        sheet.bars.append((_ticks(start), metre))
        for i, bar in bars:
            sheet.notes[i] += _notes_of(bar, start)
            if not sheet.tracks[i].is_drum:
                sheet.keys[i] += [(_ticks(start + at), key) for at, key in bar.keys]
            sheet.tempos += [(_ticks(start + at), bpm) for at, bpm in bar.tempos]
            sheet.markers += [(i, _ticks(start + at), text) for at, text in bar.markers]
        start += length or Fraction(bar_ticks(metre), TICKS_PER_BEAT)
    sheet.end = _ticks(start)
    if sheet.bars:  # as printed, since a repeat may begin between the pieces
        lengths = (_ticks(length_at(index)) for index in range(len(longest)))
        sheet.is_divided = is_divided(lengths, sheet.bars[0][1])
    return sheet


def _ticks(quarters: Fraction) -> int:
    return round(quarters * TICKS_PER_BEAT)


def _notes_of(bar: Bar, start: Fraction) -> Iterator[Note[int]]:
    """Yield the notes of a bar in ticks, without those that are too short for one."""
    for note in bar.notes:
        onset, end = _ticks(start + note.onset), _ticks(start + note.onset + note.duration)
        if end > onset:
            yield Note(onset, end - onset, *note[2:])


def _metre_of(length: Fraction) -> Metre | None:
    """Return the metre of a bar without one, by its length in quarters; None if it has none."""
    eighths = length * 2
    if eighths.denominator > 1 or not 2 <= eighths <= 24:
        return None
    return (int(eighths) // 2, 4) if eighths % 2 == 0 else (int(eighths), 8)


def bar_ticks(metre: Metre) -> int:
    """Return the ticks in a bar."""
    return WHOLE * metre[0] // metre[1]


def _changes(events: Sequence[tuple[int, Value]]) -> list[tuple[int, Value]]:
    """Return events in order without those that repeat the one before, one per tick."""
    last_of_tick = sorted(dict(events).items(), key=itemgetter(0))
    return [next(same) for _, same in groupby(last_of_tick, itemgetter(1))]


def _common_keys(staves: Sequence[Sequence[KeyChange]]) -> list[KeyChange]:
    """Return the changes of the key that most staves have, of several the higher staff's.

    A staff without any sign, such as that of a horn, counts only if no other has one; if it is of a
    transposing instrument, only if all are. The key is minor if any staff with it says so.
    """
    changes = [_changes(staff) for staff in staves]
    signed = [each for each in changes if any(k.fifths and not k.is_open for _, k in each)]
    closed = [each for each in changes if not all(key.is_open for _, key in each)]
    counted = signed or closed or changes
    events = [(tick, i, key) for i, each in enumerate(counted) for tick, key in each]
    in_force, found = dict[int, PrintedKey](), list[KeyChange]()
    for tick, staff, changed in sorted(events):
        in_force[staff] = changed
        fifths = mode(in_force[i].fifths for i in sorted(in_force))
        found.append((tick, max(key for key in in_force.values() if key.fifths == fifths)))
    return _changes(found)


def _join_ties(notes: Sequence[Note[int]]) -> Iterator[tuple[int, int, int, int]]:
    """Yield onset, duration, pitch and velocity of notes, tied ones as one note."""
    joined = list[list[int]]()  # onset, end and pitch
    ending = defaultdict[tuple[int, int], list[tuple[bool, list[int]]]](list)
    for note in sorted(notes, key=itemgetter(0)):
        before = ending[note.pitch, note.onset]
        if note.is_tied and before:
            # Of several notes that end here, the one whose tie begins.
            before.remove(first := max(before, key=itemgetter(0)))
            whole = first[1]
        else:
            whole = [note.onset, 0, note.pitch]
            joined.append(whole)
        whole[1] = note.onset + note.duration
        ending[note.pitch, whole[1]].append((note.ties_on, whole))
    for onset, end, pitch in joined:
        yield onset, end - onset, pitch, DEFAULT_VELOCITY


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
        is_long = length > LONGEST_BAR
        if is_long:
            length = bar_ticks(metre)
        unit = metre[1]
        # A bar of one beat has two halves: software without time signatures writes 1/4.
        while (length * unit % WHOLE or length * unit == WHOLE) and unit < 64:
            unit *= 2
        while length * unit > 255 * WHOLE and unit > 1:  # the largest numerator of MIDI
            unit //= 2
        metre = -(-length * unit // WHOLE), unit
        if metre != last:
            yield TimeSignature(tick, *metre)
        last = metre if length * unit % WHOLE == 0 and not is_long else None
