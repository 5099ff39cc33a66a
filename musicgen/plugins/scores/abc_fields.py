"""The fields of ABC notation: keys, metres, unit lengths and tempi."""

import re
from fractions import Fraction
from typing import NamedTuple

_FIFTHS = {"C": 0, "G": 1, "D": 2, "A": 3, "E": 4, "B": 5, "F": -1}
_MODES = {"maj": 0, "ion": 0, "": 0, "m": -3, "min": -3, "aeo": -3, "mix": -1, "dor": -2}
_MODES |= {"phr": -4, "lyd": 1, "loc": -5}
_ALTERS = {"^^": 2, "^": 1, "=": 0, "_": -1, "__": -2}
_SHARPS = "FCGDAEB"


class AbcKey(NamedTuple):
    """A key field.

    Attributes:
        fifths: sharps, or as a negative number flats; None if the field names no key.
        alters: semitones by which it alters notes, by their letters.
        semitones: by which its clef and transposition move notes; None if it names neither.
        is_percussion: its clef is that of drums.
    """

    fifths: int | None
    alters: dict[str, int]
    semitones: int | None
    is_percussion: bool


def read_key(text: str) -> AbcKey:
    """Return what a key field says, such as `Bb`, `F#m`, `D mix ^g` or `C clef=treble-8`."""
    match = re.match(r"\s*([A-G])([#b]?)\s*([A-Za-z]*)", text)
    fifths, rest = None, text
    if match and (mode := match[3].lower()[:3]) in _MODES:
        fifths = _FIFTHS[match[1]] + 7 * ({"#": 1, "b": -1}.get(match[2], 0)) + _MODES[mode]
        rest = text[match.end() :]
    elif match and not re.match(r"[a-z]+=|treble|bass|alto|tenor", match[3], re.I):
        fifths = _FIFTHS[match[1]] + 7 * ({"#": 1, "b": -1}.get(match[2], 0))
        rest = text[match.end(2) :]
    elif re.match(r"\s*none\b", text):
        fifths = 0
    elif re.match(r"\s*H[Pp]\b", text):  # of the Highland bagpipe
        fifths = 2
    alters = dict[str, int]()
    is_explicit = match is not None and match[3] == "exp"  # the signs that follow are all
    if fifths is not None and not is_explicit:
        sharp, flat = _SHARPS[: max(0, fifths)], _SHARPS[::-1][: max(0, -fifths)]
        alters = dict.fromkeys(sharp, 1) | dict.fromkeys(flat, -1)
    for sign, letter in re.findall(r"(?:^|\s)(\^{1,2}|_{1,2}|=)([A-Ga-g])(?![a-z=])", rest):
        alters[letter.upper()] = _ALTERS[sign]
    if is_explicit:
        fifths = max(-7, min(7, sum(alters.values())))
    return AbcKey(fifths, alters, read_semitones(rest), "perc" in rest)


def read_semitones(text: str) -> int | None:
    """Return the semitones by which the clef and transposition of a field move notes."""
    found = re.findall(r"(?:treble|bass|alto|tenor|\bclef=\S*?)([+-])8", text)
    octaves = re.findall(r"\boctave=\s*(-?\d+)", text)
    moves = re.findall(r"\b(?:transpose|t)=\s*(-?\d+)", text)
    if not (found or octaves or moves or "clef" in text):
        return None
    semitones = sum(12 if sign == "+" else -12 for sign in found)
    return semitones + sum(12 * int(each) for each in octaves) + sum(map(int, moves))


def read_metre(text: str) -> tuple[int, int] | None:
    """Return a metre such as `3/4`, `C|` or `(2+3)/8`; None if there is none."""
    text = text.strip()
    if text in ("C", "C|"):
        return (4, 4) if text == "C" else (2, 2)
    match = re.match(r"\(?\s*(\d{1,3}(?:\s*\+\s*\d{1,3})*)\s*\)?\s*/\s*(\d{1,2})", text)
    if match is None:
        return None
    metre = sum(map(int, match[1].split("+"))), int(match[2])
    return metre if metre[0] and metre[1] in (1, 2, 4, 8, 16, 32, 64) else None


def read_length(text: str) -> Fraction | None:
    """Return a unit length such as `1/8`, in quarters."""
    match = re.match(r"\s*(\d{1,3})(?:/(\d{1,3}))?", text)
    if match is None or not int(match[1]) or match[2] == "0":
        return None
    return 4 * Fraction(int(match[1]), int(match[2] or 1))


def read_tempo(text: str, unit: Fraction) -> float | None:
    """Return the quarter notes a minute of a tempo field, such as `1/4=120` or `"Allegro" 3/8=60`.

    Args:
        unit: the unit length, which counts where the field is a number alone.
    """
    text = re.sub(r'"[^"]*"', " ", text)
    beats = r"((?:\d{1,3}/\d{1,3}\s*)+|C\d{0,2}\s*=)"
    match = re.search(rf"{beats}?=?\s*(\d{{1,4}}(?:\.\d{{1,4}})?)\s*$", text)
    if match is None:
        return None
    if in_units := re.match(r"C(\d*)", match[1] or ""):  # C3=60: of three unit lengths
        unit *= int(in_units[1] or 1)
    lengths = re.findall(r"(\d+)/(\d+)", match[1] or "")
    if any(below == "0" for _, below in lengths):
        return None
    beat = sum((4 * Fraction(int(over), int(below)) for over, below in lengths), Fraction(0))
    bpm = float((beat or unit) * Fraction(match[2]))
    return bpm if 4 <= bpm <= 1000 else None


def default_length(metre: tuple[int, int] | None) -> Fraction:
    """Return the unit length of a tune that names none, in quarters: a sixteenth below 3/4."""
    return Fraction(1, 4) if metre and metre[0] / metre[1] < 0.75 else Fraction(1, 2)
