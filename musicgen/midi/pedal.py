"""The sustain pedal of a part, which goes on bar by bar as before."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from musicgen.midi.score import Move
from musicgen.midi.tracks import SUSTAIN, TrackState

PEDAL_DOWN = 64
"""The value of the controller from which the pedal is down."""


class PedalBar(NamedTuple):
    """A new bar, and an earlier one with the same pedal.

    Attributes:
        first, end: ticks at which the new bar begins and ends.
        model_first, model_end: ticks at which the earlier bar begins and ends.
    """

    first: int
    end: int
    model_first: int
    model_end: int

    def moved(self, move: Move) -> "PedalBar":
        """Return the new bar at the ticks to which a function moves it, with the same model."""
        first, end = move(np.array([self.first, self.end])).tolist()
        return self._replace(first=first, end=end)


def repeat_pedal(
    state: TrackState, channel: int, bars: Sequence[PedalBar]
) -> list[tuple[int, int]]:
    """Return the tick and the value of each event of the sustain pedal in new bars.

    The pedal is up before them, and after them.

    Args:
        state: of a track, up to the new bars.
        channel: of the part in the track.
    """
    moves = [
        (event.tick, event.content[1])
        for event in state.events
        if event.status == 0xB0 | channel and event.content[0] == SUSTAIN
    ]
    repeated: list[tuple[int, int]] = []
    is_down = False
    for bar in bars:
        before = [0, *(value for tick, value in moves if tick < bar.model_first)][-1]
        shift = bar.first - bar.model_first
        end = min(bar.model_end, bar.end - shift)
        inside = [(tick + shift, value) for tick, value in moves if bar.model_first <= tick < end]
        if is_down != (before >= PEDAL_DOWN):
            inside.insert(0, (bar.first, before))
        repeated += inside
        if inside:
            is_down = inside[-1][1] >= PEDAL_DOWN
    if is_down:
        repeated.append((bars[-1].end, 0))
    return repeated
