"""Whether a last bar rests on the tonic."""

from __future__ import annotations

import numpy as np

from musicgen.metrics.key import Key
from musicgen.midi import Score, pitched_notes


def restfulness(bar: Score, key: Key, length: int) -> float:
    """Return how much a last bar rests on the tonic, from 0 to 1.

    The mean of three numbers: the share of its sounding time that belongs to the tonic triad,
    whether its lowest note is the root, and the part of it in which no more note begins. 0 without
    pitched notes.

    Args:
        length: ticks of the bar.
    """
    notes = pitched_notes(bar)
    if not len(notes):
        return 0.0
    in_triad = np.isin(notes["pitch"] % 12, key.triad)
    share = notes["duration"][in_triad].sum() / notes["duration"].sum()
    on_root = notes["pitch"].min() % 12 == key.tonic
    return float(share + on_root + 1 - notes["onset"].max() / length) / 3
