"""The order in which the bars of a printed score are played: repeats, endings, D.C. and D.S."""

import re
from collections.abc import Generator, Iterator, Sequence
from itertools import chain, pairwise

from musicgen.plugins.scores.sheet_bars import Bar

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


def read_endings(text: str) -> frozenset[int]:
    """Return the numbers of an ending such as `1, 3` or `1-3`."""
    numbers = set[int]()
    for part in text.replace(" ", "").strip(",-.").split(","):
        first, _, last = part.strip(".").partition("-")
        if first.isdecimal() and (not last or last.isdecimal()):
            numbers |= {*range(int(first[:2]), int(last[:2] or first[:2]) + 1)}
    return frozenset(numbers)


def read_mark(words: str) -> str | None:
    """Return the mark that words mean, such as `DA_CAPO` for `D.C. al Fine`; None if it is none."""
    if len(words) > _LONGEST_WORDS:
        return None
    letters = re.sub(r"[^a-z]", "", words.lower())
    return next((mark for form, mark in _WORDS.items() if re.fullmatch(form, letters)), None)


def play_order(bars: Sequence[Bar]) -> Iterator[int]:
    """Yield the indices of bars as they are played.

    Each D.C. and D.S. is obeyed once, after the repeats of its own bar. From there on no repeat is
    played, of endings the last, and the music ends at Fine, or goes to the coda. Repeats of the
    coda are played. Without a segno, D.S. means nothing; without a coda, nor does its sign.
    """
    begin: int | None = 0
    obeyed = set[int]()
    while begin is not None:
        jump = yield from _up_to_jump(bars, begin, obeyed)
        if jump is None:
            return
        obeyed.add(jump)
        begin = yield from _after_jump(bars, jump)


def _up_to_jump(
    bars: Sequence[Bar], begin: int, obeyed: set[int]
) -> Generator[int, None, int | None]:
    """Yield bars with their repeats; return the one whose D.C. or D.S. is next, None at the end."""
    for at, after in pairwise(chain(_repeated_order(bars, begin), [len(bars)])):
        yield at
        if obeyed and FINE in bars[at].marks:
            return None
        if at not in obeyed and after > at and _target(bars, at) is not None:
            return at
    return None


def _after_jump(bars: Sequence[Bar], jump: int) -> Generator[int, None, int | None]:
    """Yield the bars that follow a D.C. or D.S.; return where the music goes on, None at Fine."""
    leaves_at, coda = _coda(bars)
    for at in range(_target(bars, jump) or 0, len(bars)):
        bar = bars[at]
        if bar.endings and max(_turns(bars, _first_of_endings(bars, at), at)) not in bar.endings:
            continue
        yield at
        if FINE in bar.marks:
            return None
        if at == leaves_at:
            return coda
        if at == jump:
            return jump + 1
    return None


def _target(bars: Sequence[Bar], at: int) -> int | None:
    """Return the bar that a bar's D.C. or D.S. leads to; None if it has neither."""
    if DA_CAPO in bars[at].marks:
        return 0
    if DAL_SEGNO not in bars[at].marks:
        return None
    return next((i for i, bar in enumerate(bars) if SEGNO in bar.marks), None)


def _coda(bars: Sequence[Bar]) -> tuple[int, int]:
    """Return the bar after which the music goes to the coda, and the coda's first; -1: none.

    Of two signs of a coda without words, the first stands where the music leaves for it.
    """
    codas = [i for i, bar in enumerate(bars) if CODA in bar.marks]
    leaves = [i for i, bar in enumerate(bars) if TO_CODA in bar.marks]
    if not leaves and len(codas) > 1:
        leaves = [codas[0] - 1]  # it stands where a bar begins
    if not codas or not leaves:
        return -1, -1
    return leaves[0], codas[-1]


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


def _end_of_endings(bars: Sequence[Bar], at: int) -> int:
    """Return the index after the endings that follow a bar."""
    at += 1
    while at < len(bars) and bars[at].endings:
        at += 1
    return at


def _first_of_endings(bars: Sequence[Bar], at: int) -> int:
    """Return the first bar of the endings that a bar is one of."""
    while at > 0 and bars[at - 1].endings:
        at -= 1
    return at


def _turns(bars: Sequence[Bar], first: int, at: int) -> set[int]:
    """Return the turns of all endings from a bar to the end of those that another is one of."""
    return {turn for bar in bars[first : _end_of_endings(bars, at)] for turn in bar.endings}
