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
    for track in tracks:
        check_settings("tracks", track, Instrument)
    instruments = tuple(Instrument(**track) for track in tracks)
    names = [instrument.name for instrument in instruments]
    if not 0 < len({_plain(name) for name in names}) == len(names) <= MAX_INSTRUMENTS:
        raise ParameterError("tracks", names, f"expected 1 to {MAX_INSTRUMENTS} different names")
    for instrument in instruments:
        ranges = [(instrument.program, instrument.program), *instrument.takes]
        if not all(0 <= first <= last <= 127 for first, last in ranges):
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
    same_kind = [i for i, other in enumerate(instruments) if other.is_drum == track.is_drum]
    by_name = [i for i in same_kind if name.endswith(f" {names[i]}")]
    by_program = [i for i in same_kind if track.is_drum or _takes(instruments[i], track.program)]
    candidates = by_name + by_program
    return candidates[0] if candidates else None


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
    same_kind = [i for i, other in enumerate(instruments) if other.is_drum == track.is_drum]
    for_program = [i for i in same_kind if track.is_drum or _takes(instruments[i], track.program)]
    by_program = for_program[0] if for_program else None
    by_name = find_named(track, instruments, words)
    if by_name is None:
        return by_program
    is_bass = instruments[by_name].program in BASS_PROGRAMS
    if is_bass and track.program in CHOIR_PROGRAMS:
        return by_program
    return by_name


def find_named(
    track: Track, instruments: Sequence[Instrument], words: Sequence[Sequence[str]]
) -> int | None:
    """Return the index of the instrument that the name of a pitched track tells; None if none.

    Args:
        words: see `find_by_words`.
    """
    if track.is_drum:
        return None
    found = []  # end and length of each word in the name, and its instrument
    for i, instrument in enumerate(instruments):
        if instrument.is_drum:
            continue
        for word in (instrument.name, *words[i]):
            matches = re.finditer(rf"\b{re.escape(word)}", track.name, re.IGNORECASE)
            found += [(match.end(), len(word), i) for match in matches]
    return max(found)[2] if found else None


def _plain(name: str) -> str:
    return name.strip().lower()


def _takes(instrument: Instrument, program: int) -> bool:
    """Return whether an instrument takes the tracks of a program."""
    if instrument.takes:
        return any(first <= program <= last for first, last in instrument.takes)
    families = {program // _PROGRAMS_PER_FAMILY, instrument.program // _PROGRAMS_PER_FAMILY}
    return len(families) == 1 or families == _STRING_FAMILIES
