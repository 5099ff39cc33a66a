"""Rhythm patterns as text, and the patterns of a family of styles.

A pattern is a string for one bar of 4/4. 16 cells are sixteenths, 12 are triplet eighths. `.` is
silence, `-` holds the previous note, and other symbols are strokes:

    drums   `x` normal, `X` accented, `o` soft
    bass    `1` root, `3` third, `5` fifth, `7` seventh or sixth, `8` octave, `a` a step above or
            below the bass of the next chord
    others  `c` chord, `0`–`4` one of its notes, from the lowest on, into the next octave
"""

from dataclasses import dataclass
from typing import NamedTuple

BAR = 48
"""Steps in a bar: twelfths of a beat."""


class Hit(NamedTuple):
    """A stroke of a pattern: onset and length in steps of the bar, and its symbol."""

    onset: int
    length: int
    symbol: str


Pattern = list[Hit]


def parse(pattern: str, bar: int = BAR) -> Pattern:
    """Return the strokes of a pattern.

    Args:
        pattern: text for one bar, of which each cell has `bar / len(pattern)` steps.
        bar: steps in a bar.
    """
    hits: Pattern = []
    for i, symbol in enumerate(pattern):
        cell = bar // len(pattern)
        if symbol == "-":
            hits[-1] = hits[-1]._replace(length=hits[-1].length + cell)
        elif symbol != ".":
            hits.append(Hit(i * cell, cell, symbol))
    return hits


DRUM_KEYS = {
    "kick": 36, "snare": 38, "rim": 37, "clap": 39, "hat": 42, "pedal": 44, "open": 46,
    "ride": 51, "crash": 49, "tom_high": 50, "tom_mid": 47, "tom_low": 43, "cowbell": 56,
    "tambourine": 54, "maracas": 70, "claves": 75, "conga_high": 63, "conga_low": 64,
    "timbale": 65, "agogo": 67, "surdo": 41,
}  # fmt: skip
"""General MIDI percussion keys, by the names of drums in patterns."""


@dataclass(frozen=True)
class Family:
    """The parameters of a family of styles.

    Attributes:
        tempo: slowest and fastest tempo, in beats per minute.
        drums: alternative patterns of each instrument of the kit; "" omits it.
        bass, piano, guitar, strings: alternative patterns; "" omits the part.
        progressions: Roman numerals, one chord a bar (see `harmony.spell`).
        programs: General MIDI programs of bass, piano, guitar and strings.
    """

    tempo: tuple[int, int]
    drums: dict[str, tuple[str, ...]]
    bass: tuple[str, ...]
    piano: tuple[str, ...]
    guitar: tuple[str, ...]
    strings: tuple[str, ...]
    progressions: tuple[str, ...]
    programs: tuple[int, int, int, int]
