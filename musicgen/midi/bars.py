"""The bars of a part of a printed score, and all parts joined bar by bar."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice
from typing import NamedTuple

from musicgen.midi.score import FERMATA, TICKS_PER_BEAT, Marker, Track
from musicgen.midi.sheet import MAX_BARS, Metre, Sheet, SheetNote, bar_ticks


class BarNote(NamedTuple):
    """A note: onset in its bar and duration in quarters; for the ties see `SheetNote`."""

    onset: Fraction
    duration: Fraction
    pitch: int
    is_tied: bool
    ties_on: bool


class BarEvent(NamedTuple):
    """A change of key (fifths) or tempo (quarters a minute), a chord's marker, or a fermata."""

    onset: Fraction
    kind: str
    value: float | str = 0


@dataclass
class Bar:
    """A bar of a part.

    Attributes:
        metre: None: as the bar lines have it.
        length: in quarters.
        opens: a repeat begins.
        times: how often what a repeat ends here is played; 0: no repeat ends.
        endings: the turns of a repeat in which it is played; none: in all.
    """

    metre: Metre | None
    length: Fraction = Fraction(0)
    notes: list[BarNote] = field(default_factory=list)
    events: list[BarEvent] = field(default_factory=list)
    opens: bool = False
    times: int = 0
    endings: frozenset[int] = frozenset()


@dataclass
class Part:
    """The bars of a part; `track` has its name and instrument, without notes."""

    track: Track
    bars: list[Bar] = field(default_factory=list)


def read_endings(text: str) -> frozenset[int]:
    """Return the numbers of an ending such as `1, 3` or `1-3`."""
    numbers = set[int]()
    for part in text.replace(" ", "").strip(",-.").split(","):
        first, _, last = part.strip(".").partition("-")
        if first.isdecimal() and (not last or last.isdecimal()):
            numbers |= {*range(int(first[:2]), int(last[:2] or first[:2]) + 1)}
    return frozenset(numbers)


def _play_order(bars: Sequence[Bar]) -> Iterator[int]:
    """Yield the indices of bars as they are played, with repeats and their endings."""
    start, turn, at = 0, 1, 0
    while at < len(bars):
        bar = bars[at]
        is_after_endings = at > start and not bar.endings and bars[at - 1].endings
        if at > start and (bar.opens or is_after_endings):
            start, turn = at, 1
        is_played = not bar.endings or turn in bar.endings
        if is_played:
            yield at
        if bar.times and is_played:
            turns = {
                turn for each in bars[start : _end_of_endings(bars, at)] for turn in each.endings
            }
            if turn < max(turns, default=bar.times):
                turn, at = turn + 1, start
                continue
            start, turn = (start, turn + 1) if turns else (at + 1, 1)
        at += 1


def _end_of_endings(bars: Sequence[Bar], at: int) -> int:
    """Return the index after the endings that follow a bar."""
    at += 1
    while at < len(bars) and bars[at].endings:
        at += 1
    return at


def join_parts(parts: Sequence[Part], repeats: bool) -> Sheet:
    """Return the music of all parts, whose bars of the same number begin together.

    A bar is as long as in the part in which it is longest.

    Args:
        repeats: play what is repeated; without it every bar stands once.

    Raises:
        ValueError: there are too many bars.
    """
    sheet = Sheet([part.track for part in parts], [[] for _ in parts])
    keys = list[list[tuple[int, int]]]([[] for _ in parts])
    longest = max((part.bars for part in parts), key=len, default=[])
    order: list[int] = list(range(len(longest)))
    if repeats:
        order = list(islice(_play_order(longest), MAX_BARS + 1))
    if len(order) > MAX_BARS:
        raise ValueError(f"more than {MAX_BARS:,} bars")
    start, metre = Fraction(0), (4, 4)
    fermatas = set[tuple[int, int]]()
    for index in order:
        bars = [(i, part.bars[index]) for i, part in enumerate(parts) if index < len(part.bars)]
        own = next((bar.metre for _, bar in bars if bar.metre), None)
        length = max(bar.length for _, bar in bars)
        metre = own or _metre_of(length) or metre
        sheet.bars.append((round(start * TICKS_PER_BEAT), metre))
        for i, bar in bars:
            sheet.notes[i] += _notes_of(bar, start)
            for event in bar.events:
                tick = round((start + event.onset) * TICKS_PER_BEAT)
                if event.kind == "fermata":
                    fermatas.add((i, tick))
                else:
                    _add_event(sheet, keys[i], event, tick)
        start += length or Fraction(bar_ticks(metre), TICKS_PER_BEAT)
    sheet.end = round(start * TICKS_PER_BEAT)
    sheet.keys = [key for key, track in zip(keys, sheet.tracks, strict=True) if not track.is_drum]
    highest = min(fermatas, default=(0, 0))[0]
    sheet.markers += [Marker(tick, FERMATA) for part, tick in fermatas if part == highest]
    return sheet


def _notes_of(bar: Bar, start: Fraction) -> Iterator[SheetNote]:
    """Yield the notes of a bar in ticks, without those that are too short for one."""
    for onset, duration, pitch, is_tied, ties_on in bar.notes:
        first = round((start + onset) * TICKS_PER_BEAT)
        length = round((start + onset + duration) * TICKS_PER_BEAT) - first
        if length > 0:
            yield SheetNote(first, length, pitch, is_tied, ties_on)


def _add_event(sheet: Sheet, keys: list[tuple[int, int]], event: BarEvent, tick: int) -> None:
    if event.kind == "key":
        keys.append((tick, int(event.value)))
    elif event.kind == "tempo":
        sheet.tempos.append((tick, float(event.value)))
    else:
        sheet.markers.append(Marker(tick, str(event.value)))


def _metre_of(length: Fraction) -> Metre | None:
    """Return the metre of a bar without one, by its length in quarters; None if it has none."""
    eighths = length * 2
    if eighths.denominator > 1 or not 2 <= eighths <= 24:
        return None
    return (int(eighths) // 2, 4) if eighths % 2 == 0 else (int(eighths), 8)
