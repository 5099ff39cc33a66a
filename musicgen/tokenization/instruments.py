"""The tracks of a multi-track vocabulary, and which of a Score's tracks each of them takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from musicgen.errors import UserError
from musicgen.midi import Track

MAX_TRACKS = 255
"""Times 128 keys, this still fits 16 bits."""

PUBLISHED_TRACKS: tuple[Mapping[str, Any], ...] = (
    {"name": "Bass", "program": 33},
    {"name": "Drums", "is_drum": True},
    {"name": "Accompaniment", "program": 0},
)
"""The setting of the SPE paper (Liutkus et al. 2021), of 794 tokens."""

DEFAULT_TRACKS: tuple[Mapping[str, Any], ...] = (
    {"name": "Bass", "program": 33},
    {"name": "Drums", "is_drum": True},
    {"name": "Guitar", "program": 27},
    {"name": "Piano", "program": 0},
    {"name": "Strings", "program": 48},
)


class Instrument(NamedTuple):
    """One track of the vocabulary, with its General MIDI program 0–127."""

    name: str
    is_drum: bool = False
    program: int = 0


def instruments_of(tracks: Sequence[Mapping[str, Any]]) -> tuple[Instrument, ...]:
    """The instruments in plain data.

    Raises:
        UserError: no track, too many, two of one name, or an unknown property of one.
    """
    try:
        instruments = tuple(Instrument(**track) for track in tracks)
    except TypeError as error:
        raise UserError(
            f"tracks: {error}; give each a name, and if need be is_drum and program"
        ) from None
    names = {instrument.name.lower() for instrument in instruments}
    if not 0 < len(names) == len(instruments) <= MAX_TRACKS:
        raise UserError(
            f"tracks: {len(instruments)} with {len(names)} different names; "
            f"give 1 to {MAX_TRACKS}, each a name of its own"
        )
    return instruments


def place(track: Track, instruments: Sequence[Instrument]) -> int | None:
    """The index of the instrument that plays a Score's track; None if there is none.

    By name, in any case; else by the last words of the name (`BB Bass`); else drums to drums, and
    other tracks by General MIDI family, where solo strings and string ensembles count as one.
    """
    name = track.name.strip().lower()
    names = [instrument.name.lower() for instrument in instruments]
    if name in names:
        return names.index(name)
    # From here on drums and others are kept apart: "Steel Drums" may be melodic.
    alike = [i for i, other in enumerate(instruments) if other.is_drum == track.is_drum]
    by_words = [i for i in alike if name.endswith(f" {names[i]}")]
    family = _family(track.program)
    by_kind = [i for i in alike if track.is_drum or _family(instruments[i].program) == family]
    return next(iter(by_words + by_kind), None)


def _family(program: int) -> int:
    family = program // 8
    return 5 if family == 6 else family
