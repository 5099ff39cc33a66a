"""The 133 chords of vocabularies: their names, and progressions as musicians write them."""

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from musicgen.errors import ParameterError
from musicgen.midi.key import Key, chord_marker, final_key
from musicgen.midi.score import NOTE, PITCH_CLASSES, Score, Track
from musicgen.tokenization.quantization import find_changes
from musicgen.tokenization.vocabulary import IntArray

ROOTS = PITCH_CLASSES
INTERVALS = {
    "+": (0, 4, 8),
    "/o7": (0, 3, 6, 10),
    "7": (0, 4, 7, 10),
    "M": (0, 4, 7),
    "M7": (0, 4, 7, 11),
    "m": (0, 3, 7),
    "m7": (0, 3, 7, 10),
    "o": (0, 3, 6),
    "o7": (0, 3, 6, 9),
    "sus2": (0, 2, 7),
    "sus4": (0, 5, 7),
}
"""The tones of each quality, in semitones above the root."""

QUALITIES = tuple(INTERVALS)

CHORDS = (*(f"{root}_{quality}" for root in ROOTS for quality in QUALITIES), "N_N")
"""All qualities of one root after the other, so that a transposition by n semitones moves an index
by 11 n; `N_N` (no chord) comes last."""

NO_CHORD = len(CHORDS) - 1

_NOTE = "[A-G](?:#{0,2}|b{0,2})"
_MARKER = re.compile(rf"({_NOTE})_({'|'.join(map(re.escape, QUALITIES))})(?:_({_NOTE}))?")

_EXPECTED = (
    "expected chords such as C, Bb, F#m, Am7, Cmaj7, G7, Bm7b5, Bdim, Caug, Dsus4 or N.C., one a "
    "bar, or bars such as C Am | F | % |"
)


@lru_cache(4096)
def chord_index(marker: str) -> int | None:
    """Return the index in `CHORDS` of a marker such as `Bb_m7_F` or `N_N_N`; None if no chord.

    The bass is ignored, since the vocabulary has none; flats are read as sharps.
    """
    if marker in ("N_N", "N_N_N"):
        return NO_CHORD
    match = _MARKER.fullmatch(marker)
    if match is None:
        return None
    return pitch_class(match[1]) * len(QUALITIES) + QUALITIES.index(match[2])


def spelled(marker: str, names: Sequence[str]) -> str:
    """Return the marker of a chord with other names of its notes; other text stays.

    Args:
        names: of the pitch classes, from C on.
    """
    match = _MARKER.fullmatch(marker)
    if match is None:
        return marker
    root, quality, bass = match.groups()
    notes = [names[pitch_class(note)] for note in (root, bass) if note]
    return "_".join([notes[0], quality, *notes[1:]])


def pitch_class(note: str) -> int:
    """Return the pitch class of a name such as C, F# or Bb."""
    return (ROOTS.index(note[0]) + note.count("#") - note.count("b")) % len(ROOTS)


def chord_number(index: int) -> int:
    """Return the coordinate of a chord of `CHORDS`: 0 for no chord, else from 1 to 132.

    It is 12 times the quality, plus the root on the circle of fifths, from D# (E flat) to G#. Equal
    chords have equal numbers (as Agarwal et al. 2025 number repeated ones), and the lag of two
    chords modulo 12 is the number of fifths between their roots, in any key.
    """
    if index == NO_CHORD:
        return 0
    root, quality = divmod(index, len(QUALITIES))
    return 1 + 12 * quality + (7 * root + 3) % 12


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
    last: int | None = None
    spaced = text.replace(",", " ")
    for bar in spaced.split("|") if "|" in text else spaced.split():
        symbols = bar.split()
        if symbols == ["%"] and bars:
            bars.append(bars[-1])
            continue
        chords: list[int] = []
        for symbol in symbols:
            if symbol != "/" or last is None:
                last = parse_chord(symbol)
            chords.append(last)
        if chords:
            bars.append(chords)
    if not bars:
        raise ParameterError("chords", text, _EXPECTED)
    return bars


def key_of_chords(bars: list[list[int]]) -> Key | None:
    """Return the key of chords by bars, their roots in the bass; None without a chord."""
    rows = []
    for beat, chord in enumerate(chord for bar in bars for chord in bar if chord != NO_CHORD):
        root, quality = divmod(chord, len(QUALITIES))
        rows += [(beat, 1, 48 + root + tone, 64) for tone in INTERVALS[QUALITIES[quality]]]
    return final_key(Score(1, tracks=[Track(notes=np.array(rows, NOTE))]))


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
