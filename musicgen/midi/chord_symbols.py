"""Printed chord symbols, such as Am7 or F#dim/A, as markers of chords."""

import re

_MAJOR, _MINOR = r"(?:[Mm]ajor|[Mm]aj|ma|M|Δ|\^)", r"(?:[Mm]inor|[Mm]in|mi|m|-)"
_SEVENTH = r"(?:7|9|11|13)"
_TENSIONS = r"(?:(?:add|no|[b#+-])(?:2|3|4|5|6|9|11|13))*"
# The first that matches what follows the root decides. Tensions are left out; sixths and ninths
# without a seventh are triads, for the markers have none.
CHORD_SPELLINGS = {
    "sus2": rf"{_SEVENTH}?sus[29]",
    "sus4": rf"4|{_SEVENTH}?sus4?{_TENSIONS}",
    "/o7": rf"ø7?|h7|0|/o7|{_MINOR}{_SEVENTH}[b-]5",
    "o7": r"(?:dim|o|°)[79]",
    "o": rf"dim|o|°|{_MINOR}[b-]5",
    "+": r"aug|\+5?|#5",
    "m7": rf"{_MINOR}{_SEVENTH}{_TENSIONS}",
    "m": rf"{_MINOR}(?:6/9|69|6|/?{_MAJOR}{_SEVENTH})?{_TENSIONS}",
    "M7": rf"(?:{_MAJOR}{_SEVENTH}|Δ|\^){_TENSIONS}",
    "7": rf"(?:(?:aug|\+|dom)?{_SEVENTH}\+?|7?alt){_TENSIONS}(?:alt)?",
    "M": rf"{_MAJOR}?(?:2|5|6/9|69|6)?{_TENSIONS}",
}
_LONGEST = 40  # characters
NO_CHORDS = ("NC", "N.C.", "N.C", "n.c.", "N", "none")
_SYMBOL = re.compile(r"([A-G][#b]?)(.*?)(?:/([A-G][#b]?))?")
_PLAIN = str.maketrans({"♯": "#", "♭": "b", "−": "-", "△": "Δ", " ": None})
_FIFTHS = "FCGDAEB"  # ascending


def chord_marker(symbol: str) -> str | None:
    """Return the marker of a chord symbol, such as `A_m7_E` of Am7/E; None if it is no chord."""
    if len(symbol) > _LONGEST:
        return None
    plain = symbol.translate(_PLAIN)
    if plain.startswith("("):  # a chord that may be left out
        plain = plain[1:].removesuffix(")")
    if plain in NO_CHORDS:
        return "N_N_N"
    match = _SYMBOL.fullmatch(plain)
    if match is None:
        return None
    root, ending, bass = match.groups()
    ending = re.sub(r"[(),]", "", ending)
    for quality, spelling in CHORD_SPELLINGS.items():
        if re.fullmatch(spelling, ending):
            return f"{root}_{quality}_{bass or root}"
    return None


def transposed_marker(marker: str, fifths: int) -> str:
    """Return the marker of a chord by some fifths higher, spelled as the key by as many is."""
    root, quality, bass = marker.split("_")
    if root == "N":
        return marker
    return f"{_transposed(root, fifths)}_{quality}_{_transposed(bass, fifths)}"


def _transposed(note: str, fifths: int) -> str:
    signs = note.count("#") - note.count("b")
    signs, place = divmod(_FIFTHS.index(note[0]) + 7 * signs + fifths, 7)
    return _FIFTHS[place] + ("#" * signs if signs > 0 else "b" * -signs)
