"""The bars of a part of a printed score."""

from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from musicgen.midi.score import Track
from musicgen.plugins.scores.sheet import Metre


class BarNote(NamedTuple):
    """A note: onset in its bar and duration in quarters; for the ties see `SheetNote`."""

    onset: Fraction
    duration: Fraction
    pitch: int
    is_tied: bool
    ties_on: bool


class BarEvent(NamedTuple):
    """A change of key (fifths) or tempo (quarters a minute), a chord's marker, or a fermata."""

    onset: Fraction
    kind: str
    value: float | str = 0


@dataclass
class Bar:
    """A bar of a part.

    Attributes:
        metre: None: as the bar lines have it.
        length: in quarters.
        opens: a repeat begins.
        times: how often what a repeat ends here is played; 0: no repeat ends.
        endings: the turns of a repeat in which it is played; none: in all.
        marks: those of D.C. and D.S., see `play_order`.
    """

    metre: Metre | None
    length: Fraction = Fraction(0)
    notes: list[BarNote] = field(default_factory=list)
    events: list[BarEvent] = field(default_factory=list)
    opens: bool = False
    times: int = 0
    endings: frozenset[int] = frozenset()
    marks: set[str] = field(default_factory=set)


@dataclass
class Part:
    """The bars of a part; `track` has its name and instrument, without notes."""

    track: Track
    bars: list[Bar] = field(default_factory=list)
