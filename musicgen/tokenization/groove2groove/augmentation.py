"""Random removal of tracks and bars from training crops."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from musicgen.tokenization.vocabulary import IntArray


@dataclass(frozen=True)
class TrackBarDropout:
    """Drops whole tracks, and cuts out bars so that later ones move up."""

    dropped: NDArray[np.bool_]  # tracks to drop [num_tracks]
    preference: NDArray[np.float64]  # the dropped track with the highest stays if no other plays
    skipped: NDArray[np.bool_]  # bars to cut out, unless they contain all notes [num_bars]
    bar_length: int  # in grid steps

    def extend(self, time: int, onset: IntArray) -> TrackBarDropout:
        """Treat later bars up to a time as the last one; keep all if no onset would stay."""
        added = max(0, time // self.bar_length + 1 - len(self.skipped))
        skipped = np.append(self.skipped, np.full(added, self.skipped[-1]))
        return replace(self, skipped=skipped & ~skipped[onset // self.bar_length].all())

    def keep(self, track: IntArray, onset: IntArray) -> NDArray[np.bool_]:
        """Return which notes stay [num_notes]; not empty after `extend`."""
        keep = ~self.skipped[onset // self.bar_length]
        present = np.bincount(track[keep], minlength=len(self.dropped)) > 0
        dropped = self.dropped.copy()
        if dropped[present].all():
            dropped[np.argmax(np.where(present, self.preference, -1.0))] = False
        return keep & ~dropped[track]

    def shift(self, time: IntArray) -> IntArray:
        """Return times after the cuts; a time within a skipped bar becomes the time of the cut."""
        bar = time // self.bar_length
        kept = ~self.skipped
        start = np.concatenate([[0], np.cumsum(kept)]) * self.bar_length
        return start[bar] + np.where(kept[bar], time - bar * self.bar_length, 0)
