"""Random changes of a training crop that concern whole tracks and bars."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from musicgen.tokenization.vocabulary import IntArray


@dataclass(frozen=True)
class Thinning:
    """Tracks left out, and bars cut out of the music so that the later ones move up.

    Attributes:
        dropped: the tracks to leave out. [num_tracks]
        preference: if those are all that play, the one with the greatest stays. [num_tracks]
        skipped: the bars to cut, unless they hold all notes. [num_bars]
        bar_length: in grid steps.
    """

    dropped: NDArray[np.bool_]
    preference: NDArray[np.float64]
    skipped: NDArray[np.bool_]
    bar_length: int

    def until(self, time: int) -> Thinning:
        """With the bars up to a time, of which those added go as the last one does."""
        added = max(0, time // self.bar_length + 1 - len(self.skipped))
        return replace(self, skipped=np.append(self.skipped, np.full(added, self.skipped[-1])))

    def spare_bars(self, onset: IntArray) -> Thinning:
        """Without the cuts if they would take every note."""
        if self.skipped[onset // self.bar_length].all():
            return replace(self, skipped=np.zeros_like(self.skipped))
        return self

    def keep(self, track: IntArray, onset: IntArray) -> NDArray[np.bool_]:
        """Which notes stay [num_notes]; some do if `spare_bars` has seen them."""
        keep = ~self.skipped[onset // self.bar_length]
        present = np.bincount(track[keep], minlength=len(self.dropped)) > 0
        dropped = self.dropped.copy()
        if dropped[present].all():
            dropped[np.argmax(np.where(present, self.preference, -1.0))] = False
        return keep & ~dropped[track]

    def move(self, time: IntArray) -> IntArray:
        """Times after the cut; a time inside a cut bar becomes the time of the cut."""
        bar = time // self.bar_length
        kept = ~self.skipped
        start = np.concatenate([[0], np.cumsum(kept)]) * self.bar_length
        return start[bar] + np.where(kept[bar], time - bar * self.bar_length, 0)
