"""The columns of positions, and which of them an encoding reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from musicgen.errors import ParameterError

NAMES = ("index", "time", "bar", "beat", "pitch", "chord")
"""Names of coordinates. What they count is up to whoever computes positions."""

Coordinates: TypeAlias = str | int | Sequence[str]


class Columns(NamedTuple):
    """The coordinates that an encoding reads."""

    read: tuple[int, ...]  # columns of positions, in the order of reading
    total: int  # columns that positions must have
    names: tuple[str, ...]  # of the columns; empty beyond `time` if only their number is known


def find_columns(coordinates: Coordinates) -> Columns:
    """Return the columns of coordinates given by name, by a list of names or by their number.

    Positions begin with `index`; if more is read, `time` follows, then the others in their order.

    Raises:
        ParameterError: a name is unknown or repeated, or there is no coordinate.
    """
    if isinstance(coordinates, int) and not isinstance(coordinates, bool) and coordinates >= 1:
        return Columns(tuple(range(coordinates)), coordinates, NAMES[: min(coordinates, 2)])
    names: list[str] = []
    if isinstance(coordinates, str):
        names = ["index", "time"] if coordinates == "both" else [coordinates]
    elif isinstance(coordinates, Sequence):
        names = list(coordinates)
    if not names or any(name not in NAMES for name in names) or len({*names}) < len(names):
        expected = (
            f"expected {', '.join(NAMES)}, a list of different ones such as [index,beat], both "
            "(index and time) or a number of coordinates"
        )
        raise ParameterError("coordinates", coordinates, expected)
    layout = ["index"]
    if names != layout:
        layout = ["index", "time", *(name for name in names if name not in ("index", "time"))]
    return Columns(tuple(map(layout.index, names)), len(layout), tuple(layout))
