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

BAND_TRACKS: tuple[Mapping[str, Any], ...] = (
    {"name": "Bass", "program": 33, "takes": [[32, 39]]},
    {"name": "Drums", "is_drum": True},
    {"name": "Guitar", "program": 27, "takes": [[24, 31], [104, 107]]},
    {"name": "Keys", "program": 0, "takes": [[0, 23], [108, 108]]},
    {"name": "Strings", "program": 48, "takes": [[40, 51], [110, 110]]},
    {"name": "Voices", "program": 52, "takes": [[52, 54]]},
    {"name": "Brass", "program": 61, "takes": [[55, 63]]},
    {"name": "Winds", "program": 73, "takes": [[64, 79], [109, 109], [111, 111]]},
    {"name": "Synth", "program": 81, "takes": [[80, 103]]},
)
"""Nine groups that take every General MIDI program but percussion and sound effects (112–127)."""


class Instrument(NamedTuple):
    """One track of the vocabulary.

    Attributes:
        name: differs from the others'.
        is_drum: its keys are drums.
        program: the General MIDI program 0–127 that it is played with.
        takes: the programs that it stands for, as ranges (first, last); without any, those of
            its program's family.
    """

    name: str
    is_drum: bool = False
    program: int = 0
    takes: Sequence[Sequence[int]] = ()


def instruments_of(tracks: Sequence[Mapping[str, Any]]) -> tuple[Instrument, ...]:
    """The instruments in plain data.

    Raises:
        UserError: no track, too many, two of one name, or a property of one that is none.
    """
    try:
        given = [Instrument(**track) for track in tracks]
        takes = [tuple((first, last) for first, last in own.takes) for own in given]
    except (TypeError, ValueError) as error:
        raise UserError(
            f"tracks: {error}; give each a name, and if need be is_drum, program and takes"
        ) from None
    instruments = tuple(own._replace(takes=t) for own, t in zip(given, takes, strict=True))
    for own in instruments:
        for first, last in ((own.program, own.program), *own.takes):
            if not 0 <= first <= last <= 127:
                raise UserError(f"tracks: programs {first} to {last}; give them within 0 and 127")
    names = {_plain(own.name) for own in instruments}
    if not 0 < len(names) == len(instruments) <= MAX_TRACKS:
        raise UserError(
            f"tracks: {len(instruments)} with {len(names)} different names; "
            f"give 1 to {MAX_TRACKS}, each a name of its own"
        )
    return instruments


def place(track: Track, instruments: Sequence[Instrument]) -> int | None:
    """The index of the instrument that plays a Score's track; None if there is none.

    By name, in any case; else by the last words of the name (`BB Bass`); else drums to drums, and
    other tracks by the programs that an instrument takes: without a list of its own, those of its
    General MIDI family, where solo strings and string ensembles count as one.
    """
    name = _plain(track.name)
    names = [_plain(own.name) for own in instruments]
    if name in names:
        return names.index(name)
    # From here on drums and others are kept apart: "Steel Drums" may be melodic.
    alike = [i for i, other in enumerate(instruments) if other.is_drum == track.is_drum]
    by_words = [i for i in alike if name.endswith(f" {names[i]}")]
    by_kind = [i for i in alike if track.is_drum or _takes(instruments[i], track.program)]
    return next(iter(by_words + by_kind), None)


def _plain(name: str) -> str:
    return name.strip().lower()


def _takes(instrument: Instrument, program: int) -> bool:
    if instrument.takes:
        return any(first <= program <= last for first, last in instrument.takes)
    return _family(program) == _family(instrument.program)


def _family(program: int) -> int:
    family = program // 8
    return 5 if family == 6 else family
