"""The tunes of a book in ABC notation; their keys, metres, lengths, tuplets and tempi."""

import re
from fractions import Fraction

from musicgen.midi.key import LETTERS, signs_of_key
from musicgen.plugins.scores.bars_and_repeats import MAX_BARS, Metre, PrintedKey

_MODES = {"maj": 0, "ion": 0, "": 0, "m": -3, "min": -3, "aeo": -3, "mix": -1, "dor": -2}
_MODES |= {"phr": -4, "lyd": 1, "loc": -5}


def split_tunes(text: str) -> list[str]:
    """Return the tunes of a book, each with the fields that come before the first tune.

    A tune begins with an `X:` field and ends at an empty line after its key; other text is left
    out. Text without any `X:` is one tune.
    """
    text = "\n".join(line.rstrip() for line in text.splitlines())
    text = re.sub(r"(?ms)^%%begin([a-z]+).*?(^%%end\1[^\n]*\n?|\Z)", "", text)  # blocks of text
    text = re.sub(
        r"(?m)^(%(?!%MIDI|%propagate)|\+:).*\n?", "", text
    )  # comments, and words that go on
    before, *tunes = re.split(r"(?m)^(?=X:)", text)
    if not tunes:
        before, tunes = "", [f"X:1\n{text}"]
    common = re.findall(r"(?m)^(?:[LMQm]:|(?:%%|I:)propagate).*", before)
    found = []
    for tune in tunes:
        head, key, music = tune.partition("\nK:")
        found.append("\n".join([*common, head + key + music.split("\n\n")[0]]))
    return found


def read_key(text: str) -> tuple[PrintedKey | None, dict[str, int], int | None]:
    """Read a key field, such as `Bb`, `F#m`, `D mix ^g` or `C clef=treble-8`.

    Returns:
        The key signature, None if the field names no key; the semitones by which it alters notes,
        by their letters; and those of `read_semitones`.
    """
    match = re.match(r"\s*([A-G])([#b]?)\s*([A-Za-z]*)", text)
    fifths, rest, minor = None, text, False
    if match:
        mode = match[3].lower()[:3]
        fifths = LETTERS.index(match[1]) - 1 + 7 * {"#": 1, "b": -1}.get(match[2], 0)
        fifths += _MODES.get(mode, 0)
        minor = mode in ("m", "min", "aeo")
        rest = text[match.end(3 if mode in _MODES else 2) :]
    elif re.match(r"\s*none\b", text):
        fifths = 0
    elif re.match(r"\s*H[Pp]\b", text):  # of the Highland bagpipe
        fifths = 2
    is_explicit = match is not None and match[3] == "exp"  # the signs that follow are all
    alters = signs_of_key(0 if fifths is None or is_explicit else fifths)
    for sign, letter in re.findall(r"(?:^|\s)(\^{1,2}|_{1,2}|=)([A-Ga-g])(?![a-z=])", rest):
        alters[letter.upper()] = sign.count("^") - sign.count("_")
    if is_explicit:
        fifths = max(-7, min(7, sum(alters.values())))
    key = None if fifths is None else PrintedKey(fifths, minor)
    return key, alters, read_semitones(rest)


def read_semitones(text: str) -> int | None:
    """Return the semitones by which a clef and a transposition move notes; None without either."""
    found = re.findall(r"(?:treble|bass|alto|tenor|\bclef=\S*?)([+-])8", text)
    octaves = re.findall(r"\boctave=\s*(-?\d+)", text)
    moves = re.findall(r"\b(?:transpose|t)=\s*(-?\d+)", text)
    if not (found or octaves or moves or "clef" in text):
        return None
    semitones = sum(12 if sign == "+" else -12 for sign in found)
    return semitones + sum(12 * int(each) for each in octaves) + sum(map(int, moves))


def read_metre(text: str) -> Metre | None:
    """Return a metre such as `3/4`, `C|` or `(2+3)/8`; None for other text."""
    text = text.strip()
    if text in ("C", "C|"):
        return (4, 4) if text == "C" else (2, 2)
    match = re.match(r"\(?\s*(\d{1,3}(?:\s*\+\s*\d{1,3})*)\s*\)?\s*/\s*(\d{1,2})", text)
    if match is None:
        return None
    metre = sum(map(int, match[1].split("+"))), int(match[2])
    return metre if metre[0] and metre[1] in (1, 2, 4, 8, 16, 32, 64) else None


def read_order(text: str) -> str:
    """Return the letters of sections as they are played, such as AABAAB for `(A2B)2`.

    Raises:
        ValueError: there are more than a score may have bars.
    """
    order, count = re.sub(r"[^A-Z()\d]", "", text), 1
    while count:
        order, count = re.subn(
            r"\(([A-Z]*)\)(\d{0,2})|([A-Z])(\d{1,2})",
            lambda match: (match[1] or match[3] or "") * int(match[2] or match[4] or 1),
            order,
        )
        if len(order) > MAX_BARS:
            raise ValueError(f"more than {MAX_BARS:,} sections")
    return re.sub(r"[^A-Z]", "", order)


def read_length(text: str) -> Fraction | None:
    """Return a unit length such as `1/8`, in quarters."""
    match = re.match(r"\s*(\d{1,3})(?:/(\d{1,3}))?", text)
    if match is None or not int(match[1]) or match[2] == "0":
        return None
    return 4 * Fraction(int(match[1]), int(match[2] or 1))


def note_length(text: str) -> Fraction:
    """Return a length such as `3/2`, `/` or `//`, in unit lengths."""
    over, slashes, below = re.findall(r"(\d{0,4})(/*)(\d{0,4})", text)[0]
    divisor = int(below) if below else 2 ** min(8, len(slashes))
    return Fraction(int(over or 1), divisor or 1)


def read_tuplet(token: re.Match[str], metre: Metre) -> tuple[Fraction, int]:
    """Return by how much notes in a tuplet are shorter, and how many these are.

    What the token leaves out is that of the standard's table.
    """
    count, (over, below) = int(token["tuplet"]) or 1, metre
    odd = 3 if over % 3 == 0 and below >= 8 else 2
    usual = {2: 3, 3: 2, 4: 3, 6: 2, 8: 3}.get(count, odd)
    in_time = int(token["in_time"] or 0) or usual
    return Fraction(in_time, count), int(token["of_notes"] or 0) or count


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
