"""Measures of what listeners notice: melody, harmony and rhythm of single pieces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from musicgen.metrics.listening.harmony import (
    ChordChange,
    ChordStep,
    chord_steps,
    harmony_measures,
    known_step_share,
)
from musicgen.metrics.listening.melody import melody_measures, motif_return
from musicgen.metrics.listening.parts import bass_line, skyline
from musicgen.midi import Score, pitched_notes

__all__ = [
    "ChordChange",
    "ChordStep",
    "bass_line",
    "chord_steps",
    "known_step_share",
    "listening_measures",
    "motif_return",
    "skyline",
]


def listening_measures(score: Score, chords: Sequence[ChordChange]) -> dict[str, float]:
    """Measure melody, harmony and density of a piece; undefined values are NaN.

    The melody is the skyline of the pitched notes, the bass that from below; a single voice is
    the melody. The other notes are inner voices. See `melody_measures` and `harmony_measures`;
    `notes_per_bar` counts all pitched notes, over all bars.

    Args:
        chords: changes of chord sorted by tick, such as those of the score's markers.
    """
    notes = pitched_notes(score)
    high = skyline(notes)
    low = bass_line(notes) & ~high
    melody, bass, inner = notes[high], notes[low], notes[~high & ~low]
    return {
        "notes_per_bar": len(notes) / len(score.bar_starts()) if len(notes) else np.nan,
        **melody_measures(score, melody),
        **harmony_measures(score, melody, inner, bass, chords),
    }
