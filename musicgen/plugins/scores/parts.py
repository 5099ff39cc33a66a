"""The parts of a printed score, joined bar by bar."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import islice

from musicgen.midi.score import FERMATA, TICKS_PER_BEAT, Marker
from musicgen.plugins.scores.play_order import play_order
from musicgen.plugins.scores.sheet import MAX_BARS, Metre, Sheet, SheetNote, bar_ticks
from musicgen.plugins.scores.sheet_bars import Bar, BarEvent, Part


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
        for part in parts:  # most files have the marks in the first alone
            for bar, same in zip(longest, part.bars, strict=False):
                bar.marks |= same.marks
        order = list(islice(play_order(longest), MAX_BARS + 1))
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
