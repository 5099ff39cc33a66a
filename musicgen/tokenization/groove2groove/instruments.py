"""The tracks of a multi-track vocabulary, and the assignment of a Score's tracks to them."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from musicgen.errors import ParameterError
from musicgen.midi import Track
from musicgen.validation import check_settings

_CHOIR, _BASSES = range(52, 55), range(32, 40)  # programs; both have parts named Bass

NUM_KEYS = 128  # of each instrument
MAX_TRACKS = 255  # so that voices (track and key) fit 16 bits

DEFAULT_TRACKS: tuple[Mapping[str, Any], ...] = (
    {"name": "Bass", "program": 33},
    {"name": "Drums", "is_drum": True},
    {"name": "Guitar", "program": 27},
    {"name": "Piano", "program": 0},
    {"name": "Strings", "program": 48},
)


class Instrument(NamedTuple):
    """One track of the vocabulary.

    Attributes:
        program: the General MIDI program 0–127 of decoded notes.
        takes: the programs assigned to it, as ranges (first, last); if empty, those of the
            family of `program`, where solo strings and string ensembles count as one.
    """

    name: str
    is_drum: bool = False
    program: int = 0
    takes: Sequence[Sequence[int]] = ()


def instruments_of(tracks: Sequence[Mapping[str, Any]]) -> tuple[Instrument, ...]:
    """Build the instruments from plain data; raise `ParameterError` if a track is invalid."""
    for track in tracks:
        check_settings("tracks", track, Instrument)
    instruments = tuple(Instrument(**track) for track in tracks)
    names = [instrument.name for instrument in instruments]
    if not 0 < len({_plain(name) for name in names}) == len(names) <= MAX_TRACKS:
        raise ParameterError("tracks", names, f"expected 1 to {MAX_TRACKS} different names")
    for name, _, program, takes in instruments:
        if not all(0 <= a <= b <= 127 for a, b in ((program, program), *takes)):
            expected = f"expected programs from 0 to 127, ranges ascending, of {name}"
            raise ParameterError("tracks", names, expected)
    return instruments


def find_instrument(track: Track, instruments: Sequence[Instrument]) -> int | None:
    """Return the index of the instrument that plays a Score's track; None if there is none.

    The first match in this order: the same name, ignoring case; a name that ends with the
    instrument's (`BB Bass`); drums for drums; an instrument that takes the track's program.
    """
    name = _plain(track.name)
    names = [_plain(instrument.name) for instrument in instruments]
    if name in names:
        return names.index(name)
    # Only the exact name decides between drums and others: "Steel Drums" may be melodic.
    same_kind = [i for i, other in enumerate(instruments) if other.is_drum == track.is_drum]
    by_name = [i for i in same_kind if name.endswith(f" {names[i]}")]
    by_program = [i for i in same_kind if track.is_drum or _takes(instruments[i], track.program)]
    return next(iter(by_name + by_program), None)


def find_by_words(
    track: Track, instruments: Sequence[Instrument], words: Sequence[Sequence[str]]
) -> int | None:
    """Return the index of the instrument that plays a Score's track; None if there is none.

    Drums play drums. The last of the instruments' words in the track's name decides (`Lead Guitar`;
    of `Bass Guitar` and `Guitar` the longer), then the program; of a choir's bass the program.

    Args:
        words: beginnings of words that tell each of the instruments, as its name does.
    """
    same_kind = [i for i, other in enumerate(instruments) if other.is_drum == track.is_drum]
    found = []
    for i in same_kind:
        for word in (instruments[i].name, *words[i]):
            begins = re.finditer(rf"\b{re.escape(word)}", track.name, re.IGNORECASE)
            found += [(match.end(), len(word), i) for match in begins]
    by_program = [i for i in same_kind if track.is_drum or _takes(instruments[i], track.program)]
    by_name = max(found)[2] if found and not track.is_drum else None
    is_bass = by_name is not None and instruments[by_name].program in _BASSES
    if by_name is None or (is_bass and track.program in _CHOIR):
        return next(iter(by_program), None)
    return by_name


def _plain(name: str) -> str:
    return name.strip().lower()


def _takes(instrument: Instrument, program: int) -> bool:
    if instrument.takes:
        return any(first <= program <= last for first, last in instrument.takes)
    families = {p // 8 for p in (program, instrument.program)}
    return len(families) == 1 or families == {5, 6}
