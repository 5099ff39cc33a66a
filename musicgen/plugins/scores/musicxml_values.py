"""Values of MusicXML elements: numbers, metres, keys, kinds of chords, marks of D.C. and D.S."""

import re
from fractions import Fraction
from xml.etree.ElementTree import Element

from musicgen.plugins.scores.play_order import (
    CODA,
    DA_CAPO,
    DAL_SEGNO,
    FINE,
    SEGNO,
    TO_CODA,
    read_mark,
)
from musicgen.plugins.scores.sheet import Metre

_QUALITIES = {  # of chords, by their kinds
    "": "M",
    "major": "M",
    "minor": "m",
    "augmented": "+",
    "diminished": "o",
    "dominant": "7",
    "major-seventh": "M7",
    "minor-seventh": "m7",
    "diminished-seventh": "o7",
    "augmented-seventh": "7",
    "half-diminished": "/o7",
    "major-minor": "m",
    "major-sixth": "M",
    "minor-sixth": "m",
    "dominant-ninth": "7",
    "major-ninth": "M7",
    "minor-ninth": "m7",
    "dominant-11th": "7",
    "major-11th": "M7",
    "minor-11th": "m7",
    "dominant-13th": "7",
    "major-13th": "M7",
    "minor-13th": "m7",
    "suspended-second": "sus2",
    "suspended-fourth": "sus4",
    "power": "M",
}
_MARKS = {  # by attributes of sounds
    "segno": SEGNO,
    "coda": CODA,
    "tocoda": TO_CODA,
    "fine": FINE,
    "dacapo": DA_CAPO,
    "dalsegno": DAL_SEGNO,
}


def marks_of_sound(sound: Element | None) -> set[str]:
    """Return the marks of D.C. and D.S. that a sound stands for."""
    attributes = {} if sound is None else sound.attrib
    return {mark for name, mark in _MARKS.items() if attributes.get(name)}


def marks_of_direction(direction: Element, at: Fraction) -> set[str]:
    """Return the marks of D.C. and D.S. that a direction has: of its sound, else as printed.

    The sign of a coda means that the music goes there, unless it stands where a bar begins.

    Args:
        at: where in its bar it stands.
    """
    if marks := marks_of_sound(direction.find("sound")):
        return marks
    words = [each.text or "" for each in direction.iter("words")]
    if marks := {mark for each in words if (mark := read_mark(each))}:
        return marks
    if direction.find("direction-type/segno") is not None:
        return {SEGNO}
    if direction.find("direction-type/coda") is not None:
        return {TO_CODA if at else CODA}
    return set()


def read_number(text: str, what: str, *, sign: bool = False) -> Fraction:
    """Return a number of a few digits.

    Raises:
        ValueError: the text is no such number.
    """
    text = text.strip()
    if not re.fullmatch(r"\d{1,9}(\.\d{0,9})?", text.removeprefix("-") if sign else text):
        raise ValueError(f"{what} of {text[:20]!r}")
    return Fraction(text.removesuffix("."))


def marker_of_harmony(harmony: Element) -> str | None:
    """Return the marker of a chord symbol, as it is printed; None if it names no root."""
    kind = harmony.findtext("kind") or ""
    if kind == "none":
        return "N_N_N"
    root, bass = (_note_of_chord(harmony, name) for name in ("root", "bass"))
    return f"{root}_{_QUALITIES.get(kind, 'M')}_{bass or root}" if root else None


def _note_of_chord(harmony: Element, name: str) -> str:
    """Return the root or the bass of a chord symbol, such as Bb; empty if it has none."""
    step = (harmony.findtext(f"{name}/{name}-step") or "").strip()
    alter = (harmony.findtext(f"{name}/{name}-alter") or "").strip()
    signs = {"2": "##", "1": "#", "-1": "b", "-2": "bb"}
    return step + signs.get(alter, "") if step in [*"ABCDEFG"] else ""


def read_metre(time: Element) -> Metre | None:
    """Return a metre, of several numbers their sum; None without one."""
    pairs = zip(time.findall("beats"), time.findall("beat-type"), strict=False)
    total, smallest = Fraction(0), 1
    for beats, beat_type in pairs:
        unit = int(read_number(beat_type.text or "", "a beat"))
        if unit not in (1, 2, 4, 8, 16, 32, 64, 128):
            raise ValueError(f"a beat of 1/{unit}")
        count = sum(int(read_number(each, "beats")) for each in (beats.text or "").split("+"))
        total, smallest = total + Fraction(count, unit), max(smallest, unit)
    return (int(total * smallest), smallest) if total else None


def read_fifths(key: Element) -> int:
    """Return a key signature in sharps, or as a negative number flats."""
    if (text := key.findtext("fifths")) is not None:
        fifths = int(read_number(text, "a key", sign=True))
    else:
        fifths = sum(
            int(read_number(each.text or "0", "a key", sign=True)) for each in key.iter("key-alter")
        )
    if abs(fifths) > 7:
        raise ValueError(f"a key of {abs(fifths)} signs")
    return fifths
