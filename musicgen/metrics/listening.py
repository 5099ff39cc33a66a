"""Measures of what listeners notice: melody, harmony and rhythm of single pieces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from musicgen.metrics.bars import (
    STEPS_PER_BEAT,
    Events,
    bar_notes,
    bar_similarities,
    bars_and_steps,
    bars_recalled,
    join_bars,
)
from musicgen.metrics.summary import mean_of_valid
from musicgen.midi import NoteArray, Score, pitched_notes

RETURNS = (8, 16)
"""Distances in bars at which the return of motifs is measured."""

_STEP = 2  # semitones: larger intervals are leaps
_BRIDGED = 1  # bars: a longer rest ends a phrase, and the interval over it is no melodic motion

ChordStep = tuple[tuple[int, ...], tuple[int, ...]]
"""The tones of two successive chords, in a transposition that depends on their relation only."""


class ChordChange(NamedTuple):
    """A chord from a tick on: its tones as pitch classes; none where no chord sounds."""

    tick: int
    tones: frozenset[int]


def listening_measures(
    score: Score, chords: Sequence[ChordChange], prompt: Score | None = None, prompt_bars: int = 0
) -> dict[str, float]:
    """Measure melody, harmony, density and returns of a piece; undefined values are NaN.

    The melody is the skyline of the pitched notes, the bass that from below; a single voice is
    the melody. The other notes are inner voices. See `melody_measures` and `harmony_measures`;
    `notes_per_bar` counts all pitched notes, over all bars. `bars_recalled` and
    `motif_return_8`, `motif_return_16` are those of the bars behind the prompt, to whose bars they
    may return: see `musicgen.metrics.bars.bars_recalled`, and `motif_return`.

    Args:
        chords: changes of chord sorted by tick, such as those of the score's markers.
        prompt: the music before, `prompt_bars` bars; None: the piece has none.
    """
    before = prompt or Score()
    notes, earlier = pitched_notes(score), pitched_notes(before)
    high = skyline(notes)
    low = bass_line(notes) & ~high
    melody, bass, inner = notes[high], notes[low], notes[~high & ~low]
    motifs = melody_motifs(before, earlier[skyline(earlier)])
    motifs = join_bars(motifs, prompt_bars, melody_motifs(score, melody))
    all_notes = join_bars(bar_notes(before), prompt_bars, bar_notes(score))
    return {
        "notes_per_bar": len(notes) / len(score.bar_starts()) if len(notes) else np.nan,
        **melody_measures(score, melody),
        **{f"motif_return_{lag}": motif_return(motifs, lag, prompt_bars) for lag in RETURNS},
        "bars_recalled": bars_recalled(bar_similarities(all_notes[:, :3]), prompt_bars),
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
    """
    num_bars = len(score.bar_starts())
    rhythms: defaultdict[int, set[int]] = defaultdict(set)
    for bar, step in zip(*bars_and_steps(score, melody), strict=True):
        rhythms[bar].add(step)
    different = {frozenset(steps) for steps in rhythms.values()}
    return {
        "melody_range": float(np.ptp(melody["pitch"])) if len(melody) else np.nan,
        "melody_motion": _motion(score, melody),
        "melody_notes_per_bar": len(melody) / num_bars if len(melody) else np.nan,
        "melody_syncopation": _syncopation(score, melody),
        "melody_rhythms": len(different) / len(rhythms) if rhythms else np.nan,
    }


def motif_return(motifs: Events, lag: int, first: int = 0) -> float:
    """Return how much more alike bars `lag` bars apart are than any two bars of the piece.

    The similarity of two bars is Dice's coefficient of their motifs, 0 to 1; the value is its mean
    over bars n and n + `lag` less its mean over all pairs of bars. Bars without melody are left
    out. NaN without a pair at this distance.

    Args:
        motifs: of `melody_motifs`.
        lag: in bars, >= 1.
        first: pairs of earlier bars, such as a prompt's, do not count.
    """
    similarities = bar_similarities(motifs)
    filled = ~np.isnan(similarities.diagonal())
    earlier, later = np.nonzero(
        np.triu(np.outer(filled, filled & (np.arange(len(filled)) >= first)), 1)
    )
    overall = similarities[earlier, later]
    alike = overall[later - earlier == lag]
    return float(alike.mean() - overall.mean()) if len(alike) else np.nan


def melody_motifs(score: Score, melody: NoteArray) -> Events:
    """Return bar, onset in sixteenths and contour of each note of a melody: [N, 3].

    Contour is the direction from the note before in the bar, by step (at most two semitones) or
    leap, so that a motif over other chords counts as the same.
    """
    bar, step = bars_and_steps(score, melody)
    intervals = np.diff(melody["pitch"], prepend=melody["pitch"][:1])
    contour = np.sign(intervals) * (1 + (np.abs(intervals) > _STEP))
    contour[np.diff(bar, prepend=-1) != 0] = 0  # the first note of a bar has none
    return np.stack([bar, step, contour], axis=1)


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
        notes: sorted by onset, then by pitch. [N]

    Returns:
        One flag for each note. [N]
    """
    highest = np.append(notes["onset"][1:] != notes["onset"][:-1], True)[: len(notes)]
    held: list[tuple[int, int]] = []  # heap of pitches, the highest first, and when they end
    for i, (onset, duration, pitch, _) in enumerate(notes.tolist()):
        while held and held[0][1] <= onset:
            heappop(held)
        highest[i] &= not held or -held[0][0] <= pitch
        heappush(held, (-pitch, onset + duration))
    return highest


def bass_line(notes: NoteArray) -> NDArray[np.bool_]:
    """Return which notes are the bass: the skyline seen from below. [N]"""
    mirrored = notes.copy()
    mirrored["pitch"] = -notes["pitch"]
    order = np.lexsort((mirrored["pitch"], mirrored["onset"]))
    lowest = np.zeros(len(notes), bool)
    lowest[order] = skyline(mirrored[order])
    return lowest
