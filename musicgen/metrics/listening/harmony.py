"""Measures of the harmony: how melody and accompaniment fit the chords, and how voices move."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from musicgen.metrics.listening.parts import bars_and_steps
from musicgen.midi import NoteArray, Score

ChordStep = tuple[tuple[int, ...], tuple[int, ...]]
"""The tones of two successive chords, in a transposition that depends on their relation only."""


class ChordChange(NamedTuple):
    """A chord from a tick on: its tones as pitch classes; none where no chord sounds."""

    tick: int
    tones: frozenset[int]


def harmony_measures(
    score: Score,
    melody: NoteArray,
    inner: NoteArray,
    bass: NoteArray,
    chords: Sequence[ChordChange],
) -> dict[str, float]:
    """Measure melody, inner voices and bass against the chords; NaN where there is nothing to.

    - `chord_tone_share`: share of the melody notes on strong beats (the first of a bar, and its
      middle if it has an even number of beats) that are tones of the chord.
    - `chord_fit`: share of the notes of inner voices and bass that are tones of the chord.
    - `chords_per_bar`: chord changes, over all bars of the piece.
    - `voice_leading`: mean distance in semitones from a note of the inner voices to the nearest
      one of the chord before or after, over all changes of chord.
    - `bass_motion`: mean distance in semitones between the bass notes that begin two successive
      chords.

    Args:
        chords: sorted by tick; only changes.
    """
    ticks = np.array([chord.tick for chord in chords], np.int64)
    accompaniment = np.concatenate([inner, bass])
    return {
        "chord_tone_share": _share_in_chords(_strong(score, melody), ticks, chords),
        "chord_fit": _share_in_chords(accompaniment, ticks, chords),
        "chords_per_bar": len(chords) / len(score.bar_starts()) if len(chords) else np.nan,
        "voice_leading": _mean([_distance(a, b) for a, b in _changes(inner, ticks)]),
        "bass_motion": _mean(
            [abs(float(b["pitch"][0] - a["pitch"][0])) for a, b in _changes(bass, ticks)]
        ),
    }


def chord_steps(chords: Sequence[ChordChange]) -> list[ChordStep]:
    """Return each two successive chords of a piece, the same for a progression in any key.

    Changes from and to no chord are left out.
    """
    pairs = pairwise(chords)
    return [_untransposed(a.tones, b.tones) for a, b in pairs if a.tones and b.tones]


def known_step_share(chords: Sequence[ChordChange], known: Collection[ChordStep]) -> float:
    """Return the share of the chord changes of a piece that are in `known`; NaN without any."""
    return _mean([float(step in known) for step in chord_steps(chords)])


def _untransposed(before: frozenset[int], after: frozenset[int]) -> ChordStep:
    """Return the pair in the transposition in which it sorts first."""
    return min(
        (
            tuple(sorted((tone + shift) % 12 for tone in before)),
            tuple(sorted((tone + shift) % 12 for tone in after)),
        )
        for shift in range(12)
    )


def _strong(score: Score, notes: NoteArray) -> NoteArray:
    """Return the notes on the first beat of their bar, and in its middle if that is a beat."""
    bar, step = bars_and_steps(score, notes)
    metres = [score.metre_at(int(tick)) for tick in score.bar_starts()]
    # A middle of -1 matches no step.
    middles = np.array(
        [8 * m.numerator // m.denominator if m.numerator % 2 == 0 else -1 for m in metres]
    )
    return notes[(step == 0) | (step == middles[bar])]


def _share_in_chords(
    notes: NoteArray, ticks: NDArray[np.int64], chords: Sequence[ChordChange]
) -> float:
    """Return the share of the notes under a chord that are its tones."""
    index = np.searchsorted(ticks, notes["onset"], side="right") - 1
    fits = [
        int(note) % 12 in chords[i].tones
        for note, i in zip(notes["pitch"], index.tolist(), strict=True)
        if i >= 0 and chords[i].tones
    ]
    return _mean([float(fit) for fit in fits])


def _changes(notes: NoteArray, ticks: NDArray[np.int64]) -> list[tuple[NoteArray, NoteArray]]:
    """Return the notes that begin under each two successive chords that both have some."""
    index = np.searchsorted(ticks, notes["onset"], side="right") - 1
    groups = [notes[index == i] for i in range(len(ticks))]
    return [(a, b) for a, b in pairwise(groups) if len(a) and len(b)]


def _distance(before: NoteArray, after: NoteArray) -> float:
    """Return the mean distance to the nearest note of the other chord, over both chords."""
    gaps = np.abs(np.unique(before["pitch"])[:, None] - np.unique(after["pitch"]))
    return float(gaps.min(axis=0).mean() + gaps.min(axis=1).mean()) / 2


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else np.nan
