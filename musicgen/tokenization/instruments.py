"""Instruments of a vocabulary, and the assignment of a Score's tracks to them."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from musicgen.errors import ParameterError
from musicgen.midi import Track
from musicgen.validation import check_settings

CHOIR_PROGRAMS, BASS_PROGRAMS = range(52, 55), range(32, 40)  # both have parts named Bass
_PROGRAMS_PER_FAMILY = 8
_STRING_FAMILIES = {5, 6}  # solo strings, ensembles

MAX_INSTRUMENTS = 255  # so that instrument and key fit 16 bits


class Instrument(NamedTuple):
    """One instrument of a vocabulary; a decoded score has a track for each.

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
    if not isinstance(tracks, Sequence) or isinstance(tracks, str):
        raise ParameterError("tracks", tracks, "expected a list of instruments, each with a name")
    for track in tracks:
        check_settings("tracks", track, Instrument)
    instruments = tuple(Instrument(**track) for track in tracks)
    names = [instrument.name for instrument in instruments]
    if not 0 < len({_plain(name) for name in names}) == len(names) <= MAX_INSTRUMENTS:
        raise ParameterError("tracks", names, f"expected 1 to {MAX_INSTRUMENTS} different names")
    for instrument in instruments:
        takes = instrument.takes
        pairs = isinstance(takes, Sequence) and all(len(each) == 2 for each in takes)
        ranges = [(instrument.program, instrument.program), *(takes if pairs else ())]
        if not pairs or not all(0 <= first <= last <= 127 for first, last in ranges):
            expected = f"expected programs from 0 to 127, ranges ascending, of {instrument.name}"
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
    by_name = [
        i
        for i, other in enumerate(instruments)
        if other.is_drum == track.is_drum and name.endswith(f" {names[i]}")
    ]
    return by_name[0] if by_name else _find_by_program(track, instruments)


def find_by_words(
    track: Track, instruments: Sequence[Instrument], words: Sequence[Sequence[str]]
) -> int | None:
    """Return the index of the instrument that plays a Score's track; None if there is none.

    Drums play drums. For other tracks, the last word in the track's name that belongs to an
    instrument decides (`Lead Guitar`; of `Bass Guitar` and `Guitar` the longer word), and without
    such a word the program. The program also decides for a bass that is sung by a choir.

    Args:
        words: of each instrument, the beginnings of words that name it, apart from its own name.
    """
    part = find_named(track, instruments, words)
    is_bass = part is not None and instruments[part].program in BASS_PROGRAMS
    if part is None or (is_bass and track.program in CHOIR_PROGRAMS):
        return _find_by_program(track, instruments)
    return part


def find_named(
    track: Track, instruments: Sequence[Instrument], words: Sequence[Sequence[str]]
) -> int | None:
    """Return the index of the instrument that the name of a pitched track tells; None if none.

    Args:
        words: see `find_by_words`.
    """
    if track.is_drum:
        return None
    found = [  # end and length of each word in the name, and its instrument
        (match.end(), len(word), i)
        for i, instrument in enumerate(instruments)
        if not instrument.is_drum
        for word in (instrument.name, *words[i])
        for match in re.finditer(rf"\b{re.escape(word)}", track.name, re.IGNORECASE)
    ]
    return max(found)[2] if found else None


def _find_by_program(track: Track, instruments: Sequence[Instrument]) -> int | None:
    """Return the index of the first instrument that takes the program of a track, or drums."""
    family = track.program // _PROGRAMS_PER_FAMILY
    for i, other in enumerate(instruments):
        if other.takes:
            takes = any(first <= track.program <= last for first, last in other.takes)
        else:
            families = {family, other.program // _PROGRAMS_PER_FAMILY}
            takes = len(families) == 1 or families == _STRING_FAMILIES
        if other.is_drum == track.is_drum and (track.is_drum or takes):
            return i
    return None


def _plain(name: str) -> str:
    return name.strip().lower()
