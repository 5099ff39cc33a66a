"""Printed bars, which every reader of a format makes, and the order in which they are played."""

import re
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import chain, pairwise
from typing import Generic, NamedTuple, TypeVar

MAX_BARS = 20_000
"""Longer scores are damaged, or made to be long."""

KEYBOARDS = range(8)
"""The programs of instruments that are printed on several staves."""

DRUMS = {
    "D4": 44,  # hi-hat by foot
    "E4": 35,
    "F4": 36,  # bass drum
    "G4": 41,
    "A4": 43,  # floor tom
    "B4": 45,
    "C5": 38,  # snare
    "D5": 47,
    "E5": 48,  # high tom
    "F5": 51,  # ride cymbal
    "G5": 42,  # hi-hat
    "A5": 49,  # crash cymbal
    "B5": 49,
}
"""Drums of General MIDI by lines and spaces, named as in a treble clef.

As most drum sets are printed (Weinberg 1998, "Guide to standardized drumset notation").
"""

SNARE = 38
"""The drum of all other lines and spaces."""

SEGNO, CODA, TO_CODA, FINE = "segno", "coda", "to coda", "fine"
DA_CAPO, DAL_SEGNO = "da capo", "dal segno"
"""The marks of bars. A segno and a coda begin with their bar, the others hold at its end."""

_WORDS = {
    r"(dc|dacapo)((al|senza).*)?": DA_CAPO,
    r"(ds|dalsegno)((al|senza).*)?": DAL_SEGNO,
    r"(to|da|al)coda": TO_CODA,
    r"coda": CODA,
    r"segno": SEGNO,
    r"fine": FINE,
}
_LONGEST_WORDS = 60  # characters

Metre = tuple[int, int]
Time = TypeVar("Time", int, Fraction)


class Note(NamedTuple, Generic[Time]):
    """A note, or a part of one that ties join.

    Attributes:
        onset: in a `Bar` in quarters from its beginning, in a `Sheet` in ticks.
        duration: in quarters or ticks.
        is_tied: to a note that ends where it begins.
        ties_on: to a note that begins where it ends.
    """

    onset: Time
    duration: Time
    pitch: int
    is_tied: bool
    ties_on: bool


class PrintedKey(NamedTuple):
    """A key signature.

    Attributes:
        fifths: sharps, or as a negative number flats.
        minor: whether it says minor.
        is_open: whether a transposing instrument has no printed sign, but another key sounds.
    """

    fifths: int
    minor: bool = False
    is_open: bool = False

    def sounding(self, semitones: int) -> "PrintedKey":
        """Return the key that sounds where this one is written for a transposing instrument."""
        fifths = sounding_fifths(self.fifths, semitones)
        return PrintedKey(fifths, self.minor, is_open=self.fifths == 0 and fifths != 0)


@dataclass
class Bar:
    """A bar of a part. Times are in quarters from its beginning.

    Attributes:
        metre: None: inferred from the bar lines.
        keys: onset, and the key signature as it sounds.
        tempos: onset, and quarter notes a minute.
        markers: onset, and the text of a chord, a fermata or a double bar.
        opens: a repeat begins.
        times: how often the section that ends here is played; 0: no repeat ends here.
        endings: the turns of a repeat in which it is played; empty: all turns.
        marks: of D.C. and D.S., such as `SEGNO`, with their names; most have none.
    """

    metre: Metre | None
    length: Fraction = Fraction(0)
    notes: list[Note[Fraction]] = field(default_factory=list)
    keys: list[tuple[Fraction, PrintedKey]] = field(default_factory=list)
    tempos: list[tuple[Fraction, float]] = field(default_factory=list)
    markers: list[tuple[Fraction, str]] = field(default_factory=list)
    opens: bool = False
    times: int = 0
    endings: frozenset[int] = frozenset()
    marks: dict[str, str] = field(default_factory=dict)


def bar_length(metre: Metre) -> Fraction:
    """Return the length of a bar in quarters."""
    return Fraction(4 * metre[0], metre[1])


def sounding_fifths(fifths: int, semitones: int) -> int:
    """Return the key signature that sounds where one is written for a transposing instrument."""
    moved = fifths + (7 * semitones + 6) % 12 - 6
    return moved - 12 if moved > 7 else moved + 12 if moved < -7 else moved


def read_endings(text: str) -> frozenset[int]:
    """Return the numbers of an ending such as `1, 3` or `1-3`."""
    numbers = set[int]()
    for part in text.replace(" ", "").strip(",-.").split(","):
        first, _, last = part.strip(".").partition("-")
        if first.isdecimal() and (not last or last.isdecimal()):
            numbers |= {*range(int(first[:2]), int(last[:2] or first[:2]) + 1)}
    return frozenset(numbers)


def read_mark(words: str) -> str:
    """Return the mark that words mean, such as `DA_CAPO` for `D.C. al Fine`; empty for others."""
    if len(words) > _LONGEST_WORDS:
        return ""
    letters = re.sub(r"[^a-z]", "", words.lower())
    return next((mark for form, mark in _WORDS.items() if re.fullmatch(form, letters)), "")


def play_order(bars: Sequence[Bar]) -> Iterator[int]:
    """Yield the indices of bars as they are played.

    Each D.C. and D.S. is obeyed once, after the repeats of its own bar. From there on no repeat is
    played, of endings the last, and the music ends at Fine, or goes to the coda. Repeats of the
    coda are played. Without a segno, D.S. means nothing; without a coda, nor does its sign.
    """
    begin, obeyed = 0, set[int]()
    while begin >= 0:
        for at, after in pairwise(chain(_repeated_order(bars, begin), [len(bars)])):
            yield at
            marks = bars[at].marks
            if obeyed and FINE in marks:
                return
            target = _target(bars, at)
            if at not in obeyed and after > at and target is not None:
                break
        else:
            return
        obeyed.add(at)
        begin = yield from _after_jump(bars, at, target)


def _marked(bars: Sequence[Bar], mark: str, name: str) -> list[int]:
    """Return the bars with a mark of a name; if none has this name, all with the mark."""
    marked = [i for i, bar in enumerate(bars) if mark in bar.marks]
    return [i for i in marked if bars[i].marks[mark] == name] or marked


def _target(bars: Sequence[Bar], at: int) -> int | None:
    """Return the bar to which a bar sends the music back; None without D.C. and D.S.

    Of several signs of one name it is the last before. Some D.S. have a picture of the sign.
    """
    marks = bars[at].marks
    if DA_CAPO in marks or DAL_SEGNO not in marks:
        return 0 if DA_CAPO in marks else None
    signs = _marked(bars, SEGNO, marks[DAL_SEGNO])
    signs = [i for i in signs if DAL_SEGNO not in bars[i].marks] or signs
    return next((i for i in reversed(signs) if i <= at), signs[0] if signs else None)


def _coda(bars: Sequence[Bar], sign: int, jump: int) -> int | None:
    """Return the coda that a sign leads to after a D.C. or D.S.; None if that comes before it."""
    codas = _marked(bars, CODA, bars[sign].marks.get(TO_CODA, ""))
    only = codas[0] if sum(CODA in bar.marks for bar in bars) == 1 else None
    return next((i for i in codas if i > jump), only)


def _after_jump(bars: Sequence[Bar], jump: int, target: int) -> Generator[int, None, int]:
    """Yield the bars that follow a D.C. or D.S.; return where the music goes on, -1 at the end.

    The music leaves at the first sign of a coda that comes later. Of signs without words, all but
    the last may stand where it leaves.
    """
    signs = [i for i, bar in enumerate(bars) if TO_CODA in bar.marks]
    if not signs:  # they stand where a bar begins
        signs = [i - 1 for i, bar in enumerate(bars) if CODA in bar.marks][:-1]
    ways = ((i, _coda(bars, i, jump)) for i in signs if i >= target)
    leave, coda = next((way for way in ways if way[1] is not None), (-1, None))
    for at in range(target, len(bars)):
        bar = bars[at]
        if bar.endings:
            first = at
            while first > 0 and bars[first - 1].endings:
                first -= 1
            if max(_turns(bars, first, at)) not in bar.endings:
                continue
        yield at
        if FINE in bar.marks:
            return -1
        if at == leave and coda is not None:
            return coda
        if at == jump:
            return jump + 1
    return -1


def in_order(bars: list[Bar], starts: Sequence[tuple[int, str]], order: str) -> list[Bar]:
    """Return bars with their sections in an order, after those before the first section.

    Args:
        starts: the first bar and the letter of each section.
        order: letters.
    """
    ends = [*(start for start, _ in starts[1:]), len(bars)]
    pairs = zip(starts, ends, strict=True)
    sections = {letter: bars[start:end] for (start, letter), end in pairs}
    played = bars[: starts[0][0]]
    for letter in order:
        if len(played) > MAX_BARS:
            break
        section = sections.get(letter, [])
        played += [replace(bar, opens=True) for bar in section[:1]] + section[1:]
    return played


def _repeated_order(bars: Sequence[Bar], begin: int) -> Iterator[int]:
    """Yield the indices of bars from one on as they are played, with repeats and their endings."""
    start, turn, at = begin, 1, begin
    while at < len(bars):
        bar = bars[at]
        is_after_endings = at > start and not bar.endings and bars[at - 1].endings
        if at > start and (bar.opens or is_after_endings):
            start, turn = at, 1
        is_played = not bar.endings or turn in bar.endings
        if is_played:
            yield at
        if bar.times and is_played:
            turns = _turns(bars, start, at)
            if turn < max(turns, default=bar.times):
                turn, at = turn + 1, start
                continue
            start, turn = (start, turn + 1) if turns else (at + 1, 1)
        at += 1


def _turns(bars: Sequence[Bar], first: int, at: int) -> set[int]:
    """Return the turns of the endings from a bar to the end of those that another is one of."""
    end = at + 1
    while end < len(bars) and bars[end].endings:
        end += 1
    return {turn for bar in bars[first:end] for turn in bar.endings}
