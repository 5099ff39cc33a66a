"""Measures of what listeners notice: melody, harmony and rhythm of single pieces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from musicgen.metrics.summary import mean_of_valid
from musicgen.midi import NoteArray, Score, pitched_notes

STEPS_PER_BEAT = 4
"""Grid on which rhythms are compared: sixteenth notes."""
RETURNS = (8, 16)
"""Distances in bars at which the return of motifs is measured."""

_STEP = 2  # semitones: larger intervals are leaps
_BRIDGED = 1  # bars: a longer rest ends a phrase, and the interval over it is no melodic motion

IntArray = NDArray[np.int64]
Motif = frozenset[tuple[int, int]]
ChordStep = tuple[tuple[int, ...], tuple[int, ...]]
"""The tones of two successive chords, in a transposition that depends on their relation only."""


class ChordChange(NamedTuple):
    """A chord from a tick on: its tones as pitch classes; none where no chord sounds."""

    tick: int
    tones: frozenset[int]


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
    num_bars = len(score.bar_starts())
    motifs = _motifs(score, melody)
    rhythms = {frozenset(step for step, _ in motif) for motif in motifs.values()}
    return {
        "melody_range": float(np.ptp(melody["pitch"])) if len(melody) else np.nan,
        "melody_motion": _motion(score, melody),
        "melody_notes_per_bar": len(melody) / num_bars if len(melody) else np.nan,
        "melody_syncopation": _syncopation(score, melody),
        "melody_rhythms": len(rhythms) / len(motifs) if motifs else np.nan,
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
            a, b = motifs[first], motifs[second]
            similarity = 2 * len(a & b) / (len(a) + len(b))  # Dice's
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
    bass_steps = [b["pitch"][0] - a["pitch"][0] for a, b in _changes(bass, ticks)]
    return {
        "chord_tone_share": _share_in_chords(_strong(score, melody), ticks, chords),
        "chord_fit": _share_in_chords(accompaniment, ticks, chords),
        "chords_per_bar": len(chords) / len(score.bar_starts()) if len(chords) else np.nan,
        "voice_leading": mean_of_valid(np.array([_distance(*x) for x in _changes(inner, ticks)])),
        "bass_motion": mean_of_valid(np.abs(np.array(bass_steps, float))),
    }


def chord_steps(chords: Sequence[ChordChange]) -> list[ChordStep]:
    """Return each two successive chords of a piece, the same for a progression in any key.

    Changes from and to no chord are left out.
    """
    pairs = pairwise(chords)
    return [_untransposed(a.tones, b.tones) for a, b in pairs if a.tones and b.tones]


def known_step_share(chords: Sequence[ChordChange], known: Collection[ChordStep]) -> float:
    """Return the share of the chord changes of a piece that are in `known`; NaN without any."""
    return mean_of_valid(np.array([step in known for step in chord_steps(chords)], float))


def _untransposed(before: frozenset[int], after: frozenset[int]) -> ChordStep:
    """Return the pair in the transposition in which it sorts first."""

    def shifted(tones: frozenset[int], shift: int) -> tuple[int, ...]:
        return tuple(sorted((tone + shift) % 12 for tone in tones))

    return min((shifted(before, shift), shifted(after, shift)) for shift in range(12))


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
    return mean_of_valid(np.array(fits, float))


def _changes(notes: NoteArray, ticks: NDArray[np.int64]) -> list[tuple[NoteArray, NoteArray]]:
    """Return the notes that begin under each two successive chords that both have some."""
    index = np.searchsorted(ticks, notes["onset"], side="right") - 1
    groups = [notes[index == i] for i in range(len(ticks))]
    return [(a, b) for a, b in pairwise(groups) if len(a) and len(b)]


def _distance(before: NoteArray, after: NoteArray) -> float:
    """Return the mean distance to the nearest note of the other chord, over both chords."""
    gaps = np.abs(np.unique(before["pitch"])[:, None] - np.unique(after["pitch"]))
    return float(gaps.min(axis=0).mean() + gaps.min(axis=1).mean()) / 2


def skyline(notes: NoteArray) -> NDArray[np.bool_]:
    """Return which notes are the melody: the highest at their onset, with none higher still held.

    This is the skyline of Uitdenbogerd & Zobel (1998), except that a held melody note hides the
    accompaniment below it.

    Args:
        notes: sorted by onset. [N]

    Returns:
        One flag for each note. [N]
    """
    onset, end, pitch = notes["onset"], notes["onset"] + notes["duration"], notes["pitch"]
    highest = np.zeros(len(notes), bool)
    held: list[int] = []  # notes that may still sound
    for i, now in enumerate(onset.tolist()):
        held = [j for j in held if end[j] > now]
        # Notes of one onset are sorted by pitch: a higher one replaces those before it.
        for j in held:
            if onset[j] == now and pitch[j] <= pitch[i]:
                highest[j] = False
        highest[i] = all(pitch[j] <= pitch[i] for j in held)
        held.append(i)
    return highest


def bass_line(notes: NoteArray) -> NDArray[np.bool_]:
    """Return which notes are the bass: the skyline seen from below. [N]"""
    mirrored = notes.copy()
    mirrored["pitch"] = -notes["pitch"]
    order = np.lexsort((mirrored["pitch"], mirrored["onset"]))
    lowest = np.zeros(len(notes), bool)
    lowest[order] = skyline(mirrored[order])
    return lowest


def bars_and_steps(score: Score, notes: NoteArray) -> tuple[IntArray, IntArray]:
    """Return the bar of each note, and its onset in the bar in sixteenths. [N], [N]"""
    starts = score.bar_starts()
    bar = np.searchsorted(starts, notes["onset"], side="right") - 1
    step = np.rint((notes["onset"] - starts[bar]) * STEPS_PER_BEAT / score.ticks_per_beat)
    return bar, step.astype(np.int64)
