"""Chords of a Score that has no chord markers, from its notes."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from musicgen.errors import UserError
from musicgen.midi import NOTE, Marker, Score, TimeSignature
from musicgen.tokenization.chords import (
    CHORDS,
    INTERVALS,
    NO_CHORD,
    QUALITIES,
    ROOTS,
    chord_index,
)

ChordSource = Literal["auto", "markers", "recognised", "none"]

# The numbers below were set on a part of POP909; benchmarks/chord_agreement.py measures them.
# A beat's fit to a chord counts what sounds on it, as parts of 1: tones of the chord for it, with
# less weight on the seventh, others against it.
_SEVENTH, _OUTSIDE = 0.7, -0.55
# The lowest note says most about the root.
_BASS_ROOT, _BASS_TONE, _BASS_OUTSIDE = 0.35, 0.15, -0.2
_BASS_BEATS = 0.1  # what sounds for less of a beat is no bass
# Melodies lie high, and pass through notes that are not the chord's.
_HIGH, _HIGH_WEIGHT = 72, 0.3
# What a quality must bring more than a plain triad, as it has more tones or is seldom meant.
_RARENESS = {"7": 0.15, "M7": 0.15, "m7": 0.15, "sus4": 0.15, "o": 0.05}
_RARENESS |= {"+": 0.25, "sus2": 0.25, "o7": 0.25, "/o7": 0.2}
# The fit of "no chord" to a beat with notes and to a silent one, and of a chord to a silent one.
_NOTHING_FITS, _SILENCE, _CHORD_IN_SILENCE = -0.2, 0.2, -0.2
# The cost of a change at the beginning of a bar, at its middle, and on another beat.
_CHANGE_BAR, _CHANGE_MIDDLE, _CHANGE_BEAT = 0.1, 0.25, 0.6

_MAX_BEATS = 16384

FloatArray = NDArray[np.float64]


def check_source(setting: str, source: str) -> None:
    """Whether a setting names a source.

    Raises:
        UserError: it does not.
    """
    if source not in get_args(ChordSource):
        raise UserError(f"{setting}={source}: give one of {', '.join(get_args(ChordSource))}")


def with_chords(score: Score, source: ChordSource) -> Score:
    """The score with chord markers from a source; other markers stay.

    Args:
        source: `markers`, the score's own; `recognised`, from its notes in their place; `auto`,
            its own if it has any, otherwise recognised; `none`, without.
    """
    assert source in get_args(ChordSource), source
    others = [marker for marker in score.markers if chord_index(marker.text) is None]
    annotated = len(others) < len(score.markers)
    if source == "markers" or (source == "auto" and annotated):
        return score
    chords = [] if source == "none" else recognise_chords(score)
    markers = sorted([*others, *chords], key=lambda marker: marker.tick)
    repairs = [*score.repairs, *(["chords recognised"] if chords else [])]
    return replace(score, markers=markers, repairs=repairs)


def recognise_chords(score: Score) -> list[Marker]:
    """Markers such as `A_m7` where the chord changes, from the notes of all tracks but drums.

    A fit of every chord to every beat, and the sequence of chords with the best sum of fits minus
    the cost of its changes (Viterbi 1967). The fit is that of templates: how long each pitch class
    sounds on the beat, in and out of the chord, high notes counting less; whether the lowest note
    is the root; and how common the quality is. Changes are cheap at the beginning of a bar, dear
    off its middle. Bars and beats are the time signatures' own.

    Returns:
        The first at tick 0; none if there are no notes.
    """
    tracks = [track.notes for track in score.tracks if not track.is_drum]
    notes = np.concatenate([np.empty(0, NOTE), *tracks])
    if not len(notes):
        return []
    edges, cost = _beats(score)
    chords = _best_path(_fits(*_sounding(notes, edges)), cost)
    changed = np.flatnonzero(np.diff(chords, prepend=-1))
    return [
        Marker(tick, CHORDS[chord])
        for tick, chord in zip(edges[changed].tolist(), chords[changed].tolist(), strict=True)
    ]


def _beats(score: Score) -> tuple[NDArray[np.int64], FloatArray]:
    """Ticks at which beats begin, and the last one ends [S + 1]; cost of a change on each [S]."""
    starts = score.bar_starts()[:_MAX_BEATS]
    signatures = [TimeSignature(0, 4, 4), *score.time_signatures]
    latest = np.searchsorted([s.tick for s in signatures], starts, side="right") - 1
    per_bar = np.array([_beats_in_bar(s) for s in signatures])[latest]
    num, den = np.array([s[1:] for s in signatures])[latest[-1]]
    length = np.diff(starts, append=starts[-1] + 4 * score.ticks_per_beat * num // den)
    first = np.repeat(np.cumsum(per_bar) - per_bar, per_bar)
    beat = np.arange(len(first)) - first
    count = np.repeat(per_bar, per_bar)
    ticks = np.repeat(starts, per_bar) + beat * np.repeat(length, per_bar) // count
    cost = np.where(2 * beat == count, _CHANGE_MIDDLE, _CHANGE_BEAT)
    cost[beat == 0] = _CHANGE_BAR
    edges = np.append(ticks, starts[-1] + length[-1])
    return edges[: _MAX_BEATS + 1], cost[:_MAX_BEATS]


def _beats_in_bar(signature: TimeSignature) -> int:
    """Quarters; of 6/8 and its like dotted quarters, of 5/8 and its like eighths."""
    _, numerator, denominator = signature
    if denominator <= 4:
        return numerator * 4 // denominator
    return numerator // 3 if numerator % 3 == 0 else numerator


def _sounding(notes: NDArray[np.void], edges: NDArray[np.int64]) -> tuple[FloatArray, int]:
    """How long each pitch sounds on each beat, as a part of it, at most 1, and the lowest pitch.

    A note from a to b, in beats, adds to a beat s the growth from s to s + 1 of
    max(0, s - a) - max(0, s - b): two steps at a, two at b, in what is then summed up.

    Returns:
        [S, whole octaves], and the C that the first column is.
    """
    num_beats = len(edges) - 1
    index = np.arange(num_beats + 1)
    lowest = int(notes["pitch"].min()) // 12 * 12
    width = (int(notes["pitch"].max()) - lowest) // 12 * 12 + 12
    column = notes["pitch"] - lowest
    place, weight = [], []
    for ticks, sign in ((notes["onset"], 1), (notes["onset"] + notes["duration"], -1)):
        time = np.interp(ticks, edges, index)
        beat = time.astype(np.int64)
        rest = sign * (time - beat)
        place += [beat * width + column, (beat + 1) * width + column]
        weight += [sign - rest, rest]
    steps = np.bincount(np.concatenate(place), np.concatenate(weight), (num_beats + 2) * width)
    return np.clip(np.cumsum(steps.reshape(-1, width)[:num_beats], axis=0), 0, 1), lowest


def _fits(sounding: FloatArray, lowest: int) -> FloatArray:
    """How well each beat fits each chord and "no chord". [S, octaves] -> [S, 133]."""
    weight = np.where(np.arange(lowest, lowest + sounding.shape[1]) < _HIGH, 1, _HIGH_WEIGHT)
    chroma = (sounding * weight).reshape(len(sounding), -1, 12).sum(axis=1)
    total = chroma.sum(axis=1, keepdims=True)
    silent = total[:, 0] < 1e-6  # what the sums leave of notes that ended
    chroma /= np.where(silent[:, None], 1, total)
    audible = sounding > _BASS_BEATS
    bass = np.eye(12)[audible.argmax(axis=1) % 12] * audible.any(axis=1, keepdims=True)
    fits = np.full((len(sounding), len(CHORDS)), _NOTHING_FITS)
    fits[:, :NO_CHORD] = np.hstack([chroma, bass]) @ _TEMPLATES - _PENALTIES
    fits[silent] = _CHORD_IN_SILENCE
    fits[silent, NO_CHORD] = _SILENCE
    return fits


def _templates() -> FloatArray:
    """Weights of a chord's pitch classes, then of its bass. [24, 132]."""
    weights = np.empty((24, NO_CHORD))
    for chord in range(NO_CHORD):
        root, quality = divmod(chord, len(QUALITIES))
        intervals = INTERVALS[QUALITIES[quality]]
        tones = [(root + interval) % len(ROOTS) for interval in intervals]
        pitch_class, bass = np.full(12, _OUTSIDE), np.full(12, _BASS_OUTSIDE)
        pitch_class[tones] = [1, 1, 1, _SEVENTH][: len(tones)]
        bass[tones] = _BASS_TONE
        bass[root] = _BASS_ROOT
        weights[:, chord] = np.concatenate([pitch_class, bass])
    return weights


_TEMPLATES = _templates()
_PENALTIES = np.array([_RARENESS.get(quality, 0.0) for quality in QUALITIES] * len(ROOTS))


def _best_path(fits: FloatArray, cost: FloatArray) -> NDArray[np.int64]:
    """The states with the best sum of fits less costs of changes. [S, K], [S] -> [S].

    As a change costs the same whichever states it joins, only the best state can be left.
    """
    best = np.empty_like(fits)
    best[0] = fits[0]
    thresholds = [-np.inf]
    for now, before, fit, price in zip(best[1:], best, fits[1:], cost[1:].tolist(), strict=False):
        threshold = before[before.argmax()] - price
        thresholds.append(threshold)
        np.maximum(before, threshold, out=now)
        now += fit
    path = np.empty(len(fits), np.int64)
    state = int(best[-1].argmax())
    for beat in range(len(fits) - 1, 0, -1):
        path[beat] = state
        if best[beat - 1, state] < thresholds[beat]:
            state = int(best[beat - 1].argmax())
    path[0] = state
    return path
