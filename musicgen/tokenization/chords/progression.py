"""Progressions as musicians write them: `C Am F G`, or bars such as `| C Am | F | % |`."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from musicgen.errors import ParameterError
from musicgen.midi.key import chord_marker
from musicgen.tokenization.chords.symbols import chord_index
from musicgen.tokenization.quantization import find_changes
from musicgen.tokenization.vocabulary import IntArray

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
    index = chord_index(chord_marker(symbol) or symbol)
    if index is None:
        raise ParameterError("chords", symbol, _EXPECTED)
    return index


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
