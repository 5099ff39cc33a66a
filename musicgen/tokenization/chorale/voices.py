"""Four voices, and the assignment of a Score's notes to them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, groupby

import numpy as np

from musicgen.tokenization.vocabulary import IntArray

VOICES = ("Soprano", "Alto", "Tenor", "Bass")
NUM_VOICES = len(VOICES)

_CENTRES = (70, 65, 59, 51)  # usual pitches, which decide where a voice is expected at first


def find_voice(name: str) -> int | None:
    """Return the voice of a track with this name, if it is one of `VOICES` in any case."""
    names = [voice.lower() for voice in VOICES]
    plain = name.strip().lower()
    return names.index(plain) if plain in names else None


def voices_of_tracks(
    names: Sequence[str], pitches: Sequence[IntArray], onsets: Sequence[IntArray]
) -> list[int] | None:
    """Return the voice of each track; None if tracks are not voices.

    They are if their names are different voices, or if there are at most four of them and none
    has notes that begin together: then from the highest on average to the lowest.

    Args:
        pitches, onsets: of each track, which has one note or more.
    """
    by_name = [find_voice(name) for name in names]
    if None not in by_name and len(set(by_name)) == len(by_name):
        return [voice for voice in by_name if voice is not None]
    if len(names) > NUM_VOICES or any(len(np.unique(each)) < len(each) for each in onsets):
        return None
    means = [float(each.mean()) for each in pitches]
    order = np.argsort([-mean for mean in means], kind="stable").tolist()
    chosen = _nearest([means[i] for i in order], range(NUM_VOICES), _CENTRES)
    return [voice for _, voice in sorted(zip(order, chosen, strict=True))]


def lead_voices(pitch: IntArray, onset: IntArray, end: IntArray) -> IntArray:
    """Return the voice that sings each of some notes [N], -1 for notes beyond four voices.

    A note keeps its voice. Notes that begin together go, from the highest to the lowest, to those
    voices without a note whose last pitches are the nearest. If there are more notes than such
    voices, the outer notes are kept.
    """
    voice = np.full(len(pitch), -1)
    last, busy_until = list(map(float, _CENTRES)), [0] * NUM_VOICES
    order = np.lexsort((-end, -pitch, onset)).tolist()
    for step, group in groupby(order, key=lambda note: int(onset[note])):
        notes = list(group)
        free = [v for v in range(NUM_VOICES) if busy_until[v] <= step]
        if len(notes) > len(free):
            highest, lowest = (len(free) + 1) // 2, len(free) // 2
            notes = notes[:highest] + notes[len(notes) - lowest :]
        chosen = _nearest([float(pitch[note]) for note in notes], free, last)
        for note, v in zip(notes, chosen, strict=True):
            voice[note] = v
            last[v], busy_until[v] = float(pitch[note]), int(end[note])
    return voice


def _nearest(
    pitches: Sequence[float], free: Sequence[int], last: Sequence[float]
) -> tuple[int, ...]:
    """Return as many of the free voices, in order, as there are pitches: those that move least."""
    choices = combinations(free, len(pitches))
    return min(
        choices, key=lambda v: sum(abs(p - last[i]) for p, i in zip(pitches, v, strict=True))
    )
