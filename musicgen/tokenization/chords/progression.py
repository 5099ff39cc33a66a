"""Progressions as musicians write them: `C Am F G`, or bars such as `| C Am | F | % |`."""

import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from musicgen.errors import ParameterError
from musicgen.tokenization.chords.symbols import NO_CHORD, QUALITIES, chord_index, pitch_class
from musicgen.tokenization.quantization import find_changes
from musicgen.tokenization.vocabulary import IntArray

_MAJOR, _MINOR, _SEVENTH = r"(?:[Mm]aj|ma|M|Δ|\^)", r"(?:[Mm]in|mi|m|-)", r"(?:7|9|11|13)"
_TENSIONS = r"(?:\(?(?:add|no|[b#+-])(?:2|3|4|5|6|9|11|13)\)?|alt)*"
# The first that matches what follows the root decides. Tensions are left out; sixths and ninths
# without a seventh are triads, for the vocabulary has none.
_SPELLINGS = {
    "sus2": rf"{_SEVENTH}?sus2",
    "sus4": rf"4|{_SEVENTH}?sus4?{_TENSIONS}",
    "/o7": rf"ø7?|{_MINOR}{_SEVENTH}\(?[b-]5\)?",
    "o7": r"(?:dim|o|°)7",
    "o": rf"dim|o|°|{_MINOR}\(?[b-]5\)?",
    "+": r"aug|\+5?|\(?#5\)?",
    "m7": rf"{_MINOR}{_SEVENTH}{_TENSIONS}",
    "m": rf"{_MINOR}(?:6/9|69|6|\(?{_MAJOR}7\)?)?{_TENSIONS}",
    "M7": rf"(?:{_MAJOR}{_SEVENTH}|Δ){_TENSIONS}",
    "7": rf"(?:aug|\+)?{_SEVENTH}{_TENSIONS}",
    "M": rf"{_MAJOR}?(?:2|5|6/9|69|6)?{_TENSIONS}",
}
_SYMBOL = re.compile(r"([A-G][b#]?)(.*?)(?:/[A-G][b#]?)?")
_EXPECTED = (
    "expected chords such as C, Bb, F#m, Am7, Cmaj7, G7, Bm7b5, Bdim, Caug, Dsus4 or N.C., one a "
    "bar, or bars such as C Am | F | % |"
)


def parse_chord(symbol: str) -> int:
    """Return the index in `CHORDS` of the quality nearest to a symbol such as `F#m7` or `C/E`.

    The bass is ignored, since the vocabulary has none.

    Raises:
        ParameterError: it names no chord.
    """
    if symbol in ("N.C.", "NC", "N"):
        return NO_CHORD
    if (index := chord_index(symbol)) is not None:
        return index
    match = _SYMBOL.fullmatch(symbol.replace("♭", "b").replace("♯", "#"))
    for quality, spelling in _SPELLINGS.items() if match else ():
        if match and re.fullmatch(spelling, match[2]):
            return pitch_class(match[1]) * len(QUALITIES) + QUALITIES.index(quality)
    raise ParameterError("chords", symbol, _EXPECTED)


def parse_progression(text: str) -> list[list[int]]:
    """Return the chords of each bar, as indices in `CHORDS`.

    Without `|` each chord has a bar; between them the chords share a bar evenly. `%` is the bar
    before, `/` the chord before.

    Raises:
        ParameterError: there is no chord, or a symbol that names none.
    """
    if not isinstance(text, str):
        raise ParameterError("chords", text, _EXPECTED)
    bars: list[list[int]] = []
    last: list[int] = []
    for bar in text.split("|") if "|" in text else text.replace(",", " ").split():
        symbols = bar.replace(",", " ").split()
        if symbols == ["%"] and bars:
            bars.append(bars[-1])
            continue
        chords: list[int] = []
        for symbol in symbols:
            last = last if symbol == "/" and last else [parse_chord(symbol)]
            chords += last
        bars += [chords] if chords else []
    if not bars:
        raise ParameterError("chords", text, _EXPECTED)
    return bars


def schedule(bars: list[list[int]], lines: Sequence[int]) -> IntArray:
    """Return the first time and the index of each chord between bar lines, of any unit. [N, 2]

    The chords of a bar share it evenly; the bars begin again when they end.
    """
    changes = [
        (line + i * (end - line) // len(chords), chord)
        for number, (line, end) in enumerate(pairwise(lines))
        for chords in [bars[number % len(bars)]]
        for i, chord in enumerate(chords)
    ]
    return np.stack(find_changes(*np.array(changes, np.int64).reshape(-1, 2).T), axis=1)
