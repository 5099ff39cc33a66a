"""Shares of notes in keys and scales."""

import numpy as np

from musicgen.midi import Score, pitched_notes
from musicgen.midi.key import Key


def in_key_share(score: Score, key: Key | None) -> float:
    """Return the share of pitched notes in a key's major or natural minor scale; NaN without."""
    notes = pitched_notes(score)
    if key is None or not len(notes):
        return np.nan
    return float(np.isin(notes["pitch"] % 12, key.scale).mean())
