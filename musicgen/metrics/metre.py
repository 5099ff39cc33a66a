"""Grid and bar lines against the music: whether onsets fit them, and others better."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from musicgen.midi import Score, pitched_notes

NO_GRID = 0.25
"""Clarity of the grid below which there is none: the onsets lie anywhere."""
MIN_BARS = 8
MIN_GAIN = 0.03
"""Variance of the weights that another bar length must explain beyond that of the written one."""
MIN_SHIFT_GAIN = 0.3
"""By how much the correlation with a metre's accents must grow for shifted bar lines."""

_LENGTHS = {4: "2/4", 6: "3/4 or 6/8", 8: "4/4", 9: "9/8", 10: "5/4", 7: "7/8", 12: "12/8"}
_AROUND = 4  # eighths before and after a place, between which the harmony is compared

FloatArray = NDArray[np.float64]


class BarFit(NamedTuple):
    """Bars that fit better than the written ones; None where those fit."""

    metre: str | None  # of another length
    shift: int | None  # quarter notes by which bars begin later than written


def grid_clarity(beats: FloatArray) -> float:
    """Return how clearly onsets keep to beats, halves, thirds or quarters of beats, 0 to 1.

    This is the largest mean resultant length of the onsets on these circles (Mardia & Jupp 2000,
    "Directional statistics"); that of n onsets anywhere is about n^-1/2.
    """
    if not len(beats):
        return 0.0
    return float(max(abs(np.exp(2j * np.pi * k * beats).mean()) for k in (1, 2, 3, 4)))


def accents(score: Score) -> FloatArray:
    """Return how much begins at each eighth note: long notes, low ones twice, and new harmony.

    The harmony is new as far as the pitch classes of the two quarter notes from here on differ from
    those of the two before (cosine distance). Both have mean 1, and the harmony counts threefold.
    """
    notes = pitched_notes(score)
    if not len(notes):
        return np.empty(0)
    onset, end = (
        np.rint(2 * ticks / score.ticks_per_beat).astype(np.int64)
        for ticks in (notes["onset"], notes["onset"] + notes["duration"])
    )
    length = int(onset.max()) + 1
    low = notes["pitch"] < np.median(notes["pitch"])
    weight = np.minimum(notes["duration"] / score.ticks_per_beat, 4) * (1 + low)
    near = np.abs(2 * notes["onset"] / score.ticks_per_beat - onset) <= 0.25
    begins = np.bincount(onset[near], weight[near], length)

    # Sounding pitch classes by eighth, from the changes at onsets and ends, then sums over time.
    changes = np.zeros((length + 2 * _AROUND + 1, 12))
    place = notes["pitch"] % 12
    np.add.at(changes, (onset + _AROUND, place), 1)
    np.add.at(changes, (np.clip(end, onset + 1, length + _AROUND) + _AROUND, place), -1)
    total = np.cumsum(np.cumsum(changes, axis=0), axis=0)
    total = np.concatenate([np.zeros((1, 12)), total])
    spans = total[_AROUND : _AROUND + length + _AROUND] - total[: length + _AROUND]
    spans /= np.maximum(1e-9, np.linalg.norm(spans, axis=1, keepdims=True))
    new = 1 - (spans[:length] * spans[_AROUND:]).sum(axis=1)
    new[:_AROUND] = 0
    return begins / max(begins.mean(), 1e-9) + 3 * new / max(new.mean(), 1e-9)


def fit_bars(score: Score) -> BarFit:
    """Compare the bar lines with the accents of a piece in one metre of whole eighth notes.

    Nothing is said of shorter pieces than eight bars, and of a length that is a multiple or a part
    of the written one, as 2/4 for 4/4.
    """
    signatures = {s[1:] for s in score.time_signatures} or {(4, 4)}
    numerator, denominator = next(iter(signatures))
    eighths, rest = divmod(8 * numerator, denominator)
    weights = accents(score)
    if len(signatures) > 1 or rest or eighths < 2 or len(weights) < MIN_BARS * eighths:
        return BarFit(None, None)
    others = [n for n in _LENGTHS if n % eighths and eighths % n and len(weights) >= MIN_BARS * n]
    gains = {n: explained(weights, n) - explained(weights, eighths) for n in others}
    best = max(gains, key=lambda n: gains[n], default=eighths)
    if gains.get(best, 0) >= MIN_GAIN:
        return BarFit(_LENGTHS[best], None)
    beat = 3 if denominator == 8 and numerator % 3 == 0 else 2
    shift, gain = best_shift(weights, eighths, beat)
    return BarFit(None, shift // 2 if gain >= MIN_SHIFT_GAIN else None)


def explained(weights: FloatArray, length: int) -> float:
    """Return the share of variance that the place in the bar explains (adjusted R²)."""
    bars = weights[: len(weights) // length * length].reshape(-1, length)
    if bars.var() == 0:
        return 0.0
    share = bars.mean(axis=0).var() / bars.var()
    return float(1 - (1 - share) * (bars.size - 1) / (bars.size - length))


def best_shift(weights: FloatArray, length: int, beat: int) -> tuple[int, float]:
    """Return the shift whose accents fit best, in eighths, and its correlation beyond that of none.

    A bar's accents are 1 on its first beat, .6 in its middle, .3 on other beats and 0 elsewhere.
    """
    profile = weights[: len(weights) // length * length].reshape(-1, length).mean(axis=0)
    expected = np.zeros(length)
    expected[::beat] = 0.3
    if length % (2 * beat) == 0:
        expected[length // 2] = 0.6
    expected[0] = 1
    if profile.std() == 0:
        return 0, 0.0
    fits = {
        shift: float(np.corrcoef(np.roll(expected, shift), profile)[0, 1])
        for shift in range(0, length, beat)
    }
    best = max(fits, key=lambda shift: fits[shift])
    return best, fits[best] - fits[0]
