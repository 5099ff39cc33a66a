"""Names of the 133 chords of REMI."""

import re
from collections.abc import Sequence
from functools import lru_cache

from musicgen.midi.score import PITCH_CLASSES

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
