"""Printed chord symbols, such as Am7 or F#dim/A, as markers of chords."""

import re

# Endings of symbols, and the qualities that markers have; others go by their third.
_QUALITIES = {
    "M": ("", "M", "maj", "Maj", "major", "6", "maj6", "69", "6/9", "add9", "2", "add2"),
    "m": ("m", "mi", "min", "minor", "-", "m6", "min6", "-6", "m69", "madd9"),
    "7": ("7", "dom7", "9", "11", "13", "7b9", "7#9", "7b5", "7#5", "7#11", "7alt", "+7", "aug7"),
    "M7": ("M7", "maj7", "Maj7", "ma7", "Δ", "Δ7", "^7", "^", "maj9", "M9", "maj13", "maj7#11"),
    "m7": ("m7", "mi7", "min7", "-7", "m9", "min9", "m11", "min11", "-9", "m13"),
    "o": ("o", "dim", "°", "mb5", "m(b5)"),
    "o7": ("o7", "dim7", "°7"),
    "/o7": ("ø", "ø7", "m7b5", "min7b5", "-7b5", "m7(b5)", "0", "h7", "/o7"),
    "+": ("+", "aug", "#5", "(#5)"),
    "sus2": ("sus2", "sus9"),
    "sus4": ("sus", "sus4", "7sus4", "7sus", "9sus4", "9sus"),
}
_QUALITY_OF = {ending: quality for quality, endings in _QUALITIES.items() for ending in endings}
_LONGEST = 40  # characters
_NO_CHORDS = ("NC", "N.C.", "N.C", "n.c.", "none")
_SYMBOL = re.compile(r"([A-G])([#b]?)([^/]*(?:/[^A-G][^/]*)?)(?:/([A-G])([#b]?))?")
_PLAIN = str.maketrans({"♯": "#", "♭": "b", "−": "-", "△": "Δ", " ": None, "(": None, ")": None})


def chord_marker(symbol: str) -> str | None:
    """Return the marker of a chord symbol, such as `A_m7_E` of Am7/E; None if it is no chord."""
    if len(symbol) > _LONGEST:
        return None
    plain = symbol.translate(_PLAIN)
    if plain in _NO_CHORDS:
        return "N_N_N"
    match = _SYMBOL.fullmatch(plain)
    if match is None:
        return None
    step, sign, ending, bass_step, bass_sign = match.groups()
    quality = _QUALITY_OF.get(ending)
    if quality is None:
        if not re.fullmatch(r"(m|min|-|maj|M|dim|aug|sus|add|no|alt|[0-9#b+,])+", ending):
            return None
        quality = "m" if re.match(r"m(?!aj)|-", ending) else "M"
    root = step + sign
    return f"{root}_{quality}_{bass_step + bass_sign if bass_step else root}"
