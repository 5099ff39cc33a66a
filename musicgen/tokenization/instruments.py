"""Instruments of a vocabulary, and the assignment of a Score's tracks to them."""

import re
from collections import Counter
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
        takes = instrument.takes if isinstance(instrument.takes, Sequence) else [None]
        pairs = all(isinstance(each, Sequence) and len(each) == 2 for each in takes)
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
    found = by_name or _find_by_program(track, instruments)
    return found[0] if found else None


def assign_by_words(
    tracks: Sequence[Track], instruments: Sequence[Instrument], words: Sequence[Sequence[str]]
) -> list[int | None]:
    """Return the index of the instrument that plays each track of a Score; None if there is none.

    If several instruments can play a track, see `find_by_words`, the tracks of one program are
    these instruments in order, without those that other tracks are for certain: of two tracks
    named `Violin`, the second is the second violin. Tracks of which none has an instrument are the
    pitched instruments in order, if there are as many.
    """
    found = [find_by_words(track, instruments, words) for track in tracks]
    pitched = [i for i, instrument in enumerate(instruments) if not instrument.is_drum]
    if not any(found) and len(tracks) == len(pitched):
        found = [[i] for i in pitched]
    certain = {each[0] for each in found if len(each) == 1}
    seen: Counter[tuple[int, ...]] = Counter()
    assigned: list[int | None] = []
    for track, each in zip(tracks, found, strict=True):
        left = [i for i in each if i not in certain] or each
        key = (track.program, *left)
        assigned.append(left[min(seen[key], len(left) - 1)] if left else None)
        seen[key] += 1
    return assigned


def find_by_words(
    track: Track, instruments: Sequence[Instrument], words: Sequence[Sequence[str]]
) -> list[int]:
    """Return the indices of the instruments that can play a track of a Score.

    Drums play drums. For other tracks, the last word in the track's name that belongs to an
    instrument decides (`Lead Guitar`; of `Bass Guitar` and `Guitar` the longer word), and without
    such a word the program. The program also decides for a bass that is sung by a choir.

    Args:
        words: of each instrument, the beginnings of words that name it, apart from its own name.
    """
    named = find_named(track, instruments, words)
    is_bass = any(instruments[i].program in BASS_PROGRAMS for i in named)
    if named and not (is_bass and track.program in CHOIR_PROGRAMS):
        return named
    return _find_by_program(track, instruments)


def find_named(
    track: Track, instruments: Sequence[Instrument], words: Sequence[Sequence[str]]
) -> list[int]:
    """Return the indices of the instruments that the name of a pitched track tells.

    Args:
        words: see `find_by_words`.
    """
    if track.is_drum:
        return []
    found = [  # end and length of each word in the name, and its instrument
        ((match.end(), len(word)), i)
        for i, instrument in enumerate(instruments)
        if not instrument.is_drum
        for word in (instrument.name, *words[i])
        for match in re.finditer(rf"\b{re.escape(word)}", track.name, re.IGNORECASE)
    ]
    last = max(found, default=((0, 0), 0))[0]
    return sorted({i for word, i in found if word == last})


def _find_by_program(track: Track, instruments: Sequence[Instrument]) -> list[int]:
    """Return the indices of the instruments that take the program of a track, or of drums."""
    family, found = track.program // _PROGRAMS_PER_FAMILY, []
    for i, other in enumerate(instruments):
        if other.takes:
            takes = any(first <= track.program <= last for first, last in other.takes)
        else:
            families = {family, other.program // _PROGRAMS_PER_FAMILY}
            takes = len(families) == 1 or families == _STRING_FAMILIES
        if other.is_drum == track.is_drum and (track.is_drum or takes):
            found.append(i)
    return found


def _plain(name: str) -> str:
    return name.strip().lower()
