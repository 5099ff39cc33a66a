"""Measures of the melody: its range and motion, the return of its motifs, its rhythm."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from musicgen.metrics.listening.parts import STEPS_PER_BEAT, bars_and_steps
from musicgen.midi import NoteArray, Score

RETURNS = (8, 16)
"""Distances in bars at which the return of motifs is measured."""

_STEP = 2  # semitones: larger intervals are leaps
_BRIDGED = 1  # bars: a longer rest ends a phrase, and the interval over it is no melodic motion

Motif = frozenset[tuple[int, int]]


def melody_measures(score: Score, melody: NoteArray) -> dict[str, float]:
    """Measure a melody; NaN where too few notes or bars make a measure undefined.

    - `melody_range`: semitones from the lowest to the highest note.
    - `melody_motion`: mean interval between successive notes in semitones; rests of more than a
      bar are left out.
    - `melody_notes_per_bar`: over all bars of the piece.
    - `melody_syncopation`: share of notes that begin off the beat and sound across the next one,
      on which none begins (after Longuet-Higgins & Lee 1984).
    - `melody_rhythms`: number of different bar rhythms as a share of the bars with notes.
    - `motif_return_8`, `motif_return_16`: see `motif_return`.
    """
    bar, step = bars_and_steps(score, melody)
    num_bars = len(score.bar_starts())
    rhythms: defaultdict[int, set[int]] = defaultdict(set)
    for number, position in zip(bar.tolist(), step.tolist(), strict=True):
        rhythms[number].add(position)
    distinct = {frozenset(steps) for steps in rhythms.values()}
    return {
        "melody_range": float(np.ptp(melody["pitch"])) if len(melody) else np.nan,
        "melody_motion": _motion(score, melody),
        "melody_notes_per_bar": len(melody) / num_bars if len(melody) else np.nan,
        "melody_syncopation": _syncopation(score, melody),
        "melody_rhythms": len(distinct) / len(rhythms) if rhythms else np.nan,
        **{f"motif_return_{lag}": motif_return(score, melody, lag) for lag in RETURNS},
    }


def motif_return(score: Score, melody: NoteArray, lag: int) -> float:
    """Return how much more alike bars `lag` bars apart are than any two bars of the piece.

    A bar is the set of its melody notes' (onset in sixteenths, contour): contour is the direction
    from the note before in the bar, by step (at most two semitones) or leap, so that a motif over
    other chords counts as the same. The similarity of two bars is Dice's coefficient, 0 to 1; the
    value is its mean over bars n and n + `lag` less its mean over all pairs of bars. Bars
    without melody are left out. NaN without a pair at this distance.

    Args:
        lag: in bars, >= 1.
    """
    motifs = _motifs(score, melody)
    numbers = sorted(motifs)
    alike: list[float] = []
    overall: list[float] = []
    for i, first in enumerate(numbers):
        for second in numbers[i + 1 :]:
            similarity = _dice(motifs[first], motifs[second])
            overall.append(similarity)
            if second - first == lag:
                alike.append(similarity)
    return float(np.mean(alike) - np.mean(overall)) if alike else np.nan


def _motifs(score: Score, melody: NoteArray) -> dict[int, Motif]:
    """Return the (onset, contour) pairs of each bar with notes."""
    bar, step = bars_and_steps(score, melody)
    intervals = np.diff(melody["pitch"], prepend=melody["pitch"][:1])
    contour = np.sign(intervals) * (1 + (np.abs(intervals) > _STEP))
    contour[np.diff(bar, prepend=-1) != 0] = 0  # the first note of a bar has none
    found: defaultdict[int, set[tuple[int, int]]] = defaultdict(set)
    for number, *pair in np.stack([bar, step, contour], axis=1).tolist():
        found[number].add((pair[0], pair[1]))
    return {number: frozenset(pairs) for number, pairs in found.items()}


def _dice(a: Motif, b: Motif) -> float:
    return 2 * len(a & b) / (len(a) + len(b))


def _motion(score: Score, melody: NoteArray) -> float:
    intervals = np.abs(np.diff(melody["pitch"]))
    longest = _BRIDGED * 4 * score.ticks_per_beat
    near = np.diff(melody["onset"]) <= longest
    return float(intervals[near].mean()) if near.any() else np.nan


def _syncopation(score: Score, melody: NoteArray) -> float:
    if not len(melody):
        return np.nan
    bar, step = bars_and_steps(score, melody)
    # Onsets in sixteenths, such that each bar begins on a beat.
    begin = np.rint(score.bar_starts()[bar] / score.ticks_per_beat) * STEPS_PER_BEAT + step
    end = begin + np.rint(melody["duration"] * STEPS_PER_BEAT / score.ticks_per_beat)
    next_beat = (begin // STEPS_PER_BEAT + 1) * STEPS_PER_BEAT
    following = np.append(begin[1:], np.inf)
    across = (step % STEPS_PER_BEAT > 0) & (following > next_beat) & (end > next_beat)
    return float(across.mean())
