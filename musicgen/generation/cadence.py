"""Whether a last bar rests on the tonic."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from musicgen.metrics.key import find_scale
from musicgen.midi import NOTE, Score
from musicgen.midi.score import NoteArray


class Tonic(NamedTuple):
    """The root 0–11 of a key, and whether it is minor."""

    root: int
    minor: bool

    @property
    def triad(self) -> tuple[int, int, int]:
        """Return its pitch classes."""
        return self.root, (self.root + (3 if self.minor else 4)) % 12, (self.root + 7) % 12


def find_tonic(score: Score) -> Tonic | None:
    """Return the major key whose scale holds most notes, or its relative minor.

    The key of the two is the one whose root is the lowest note of more bars. None without pitched
    notes.
    """
    notes = _pitched_notes(score)
    if not len(notes):
        return None
    major = find_scale(score)
    minor = (major + 9) % 12
    bar = np.searchsorted(score.bar_starts(), notes["onset"], side="right")
    lowest = np.array([notes["pitch"][bar == each].min() % 12 for each in np.unique(bar)])
    is_minor = bool((lowest == minor).sum() > (lowest == major).sum())
    return Tonic(minor if is_minor else major, is_minor)


def restfulness(bar: Score, tonic: Tonic, length: int) -> float:
    """Return how much a last bar rests on the tonic, from 0 to 1.

    The mean of three numbers: the share of its sounding time that belongs to the tonic triad,
    whether its lowest note is the root, and the part of it in which no more note begins. 0 without
    pitched notes.

    Args:
        length: ticks of the bar.
    """
    notes = _pitched_notes(bar)
    if not len(notes):
        return 0.0
    in_triad = np.isin(notes["pitch"] % 12, tonic.triad)
    share = notes["duration"][in_triad].sum() / notes["duration"].sum()
    on_root = notes["pitch"].min() % 12 == tonic.root
    return float(share + on_root + 1 - notes["onset"].max() / length) / 3


def _pitched_notes(score: Score) -> NoteArray:
    """Return all notes but those of drums."""
    tracks = [track.notes for track in score.tracks if not track.is_drum]
    return np.concatenate([np.empty(0, NOTE), *tracks])
