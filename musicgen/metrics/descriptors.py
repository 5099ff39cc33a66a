"""Descriptors of single pieces, and distances between the distributions of two sets of pieces.

Values that are undefined, such as those of drums in a piece without drums, are NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from musicgen.midi import NoteArray, Score, pitched_notes

FloatArray = NDArray[np.float64]

GROOVE_STEPS = 64  # positions in a bar, as in MusDr
PITCH_CLASSES = 12
NUM_GRID_POINTS = 1000


def descriptors(score: Score) -> dict[str, float]:
    """Compute muspy's metrics (Dong et al. 2020) and those of MusDr (Wu & Yang 2020) of a piece.

    - muspy's: `pitch_range`, `n_pitches_used`, `n_pitch_classes_used`, `polyphony`,
      `polyphony_rate`, `pitch_entropy`, `pitch_class_entropy`, `scale_consistency`,
      `empty_beat_rate`, `groove_consistency` (bars of 4 beats), `drum_in_pattern_rate` (duple) and
      `drum_pattern_consistency`.
    - `grooving_similarity`, `pitch_class_entropy_1`, `pitch_class_entropy_4`, `self_similarity`:
      see the functions.
    """
    return {
        **_muspy_metrics(score),
        "grooving_similarity": grooving_similarity(score),
        "pitch_class_entropy_1": pitch_class_entropy(score, 1),
        "pitch_class_entropy_4": pitch_class_entropy(score, 4),
        "self_similarity": self_similarity(score),
    }


def grooving_similarity(score: Score) -> float:
    """Compute how alike the rhythms of bars are: 1 - mean Hamming distance over pairs of bars.

    A bar is a vector of 64 positions, 1 where a note begins (Wu & Yang 2020, eq. 2). NaN with
    fewer than two bars.
    """
    bars = _onset_bars(score)
    if len(bars) < 2:
        return np.nan
    # Over all pairs, a position set in k of n bars differs in k (n - k) of them.
    count, total = bars.sum(axis=0), len(bars)
    differing = (count * (total - count)).sum() / (total * (total - 1) / 2)
    return float(1 - differing / GROOVE_STEPS)


def pitch_class_entropy(score: Score, num_bars: int | None = None) -> float:
    """Compute the mean entropy in bits of the pitch classes in windows of `num_bars` bars.

    Windows begin at every bar (Wu & Yang 2020, eq. 1); those without pitched notes are left out.
    NaN without any. None: one window of all bars, as muspy's.
    """
    histograms = _chroma_bars(score)
    if not len(histograms):
        return np.nan
    window = np.ones(min(num_bars or len(histograms), len(histograms)))
    sums = np.stack([np.convolve(column, window, "valid") for column in histograms.T], axis=1)
    sums = sums[sums.sum(axis=1) > 0]
    if not len(sums):
        return np.nan
    p = sums / sums.sum(axis=1, keepdims=True)
    return float(-(p * np.log2(np.where(p > 0, p, 1))).sum(axis=1).mean())


def self_similarity(score: Score) -> float:
    """Compute the mean cosine similarity of the pitch classes of all pairs of bars with notes.

    This is the mean off the diagonal of the self-similarity matrix (Foote 1999). NaN with fewer
    than two such bars.
    """
    bars = _chroma_bars(score)
    norms = np.linalg.norm(bars, axis=1)
    unit = bars[norms > 0] / norms[norms > 0, None]
    n = len(unit)
    if n < 2:
        return np.nan
    return float((np.square(unit.sum(axis=0)).sum() - n) / (n * (n - 1)))


def distribution_distance(generated: FloatArray, reference: FloatArray) -> tuple[float, float]:
    """Compare the values of a descriptor in two sets: overlapping area and KL divergence.

    As in Yang & Lerch (2020): the distances between all pairs within the generated set, and
    between the sets, give two densities by Gaussian kernels (Scott's rule). The overlapping area
    (1 is best) is the integral of their minimum; the divergence, in nats (0 is best), is that of
    the first from the second, both on one grid of the distances. NaN values are left out.

    Returns:
        NaN if either density is undefined: fewer than three pieces, or all distances equal.
    """
    from scipy.stats import entropy  # slow to import

    a, b = (values[~np.isnan(values)] for values in (generated, reference))
    if len(a) < 3 or not len(b):
        return np.nan, np.nan
    within = np.abs(a[:, None] - a)[np.triu_indices(len(a), 1)]
    between = np.abs(a[:, None] - b).ravel()
    if min(np.ptp(within), np.ptp(between)) <= 1e-9 * max(within.max(), between.max()):
        return np.nan, np.nan
    grid = np.linspace(0, max(within.max(), between.max()), NUM_GRID_POINTS)
    edges = np.linspace(0, grid[-1], 4 * NUM_GRID_POINTS + 1)  # of bins, as pairs are many
    gaps = grid[:, None] - (edges[:-1] + edges[1:]) / 2
    densities = []
    for distances in (within, between):
        bandwidth = distances.std(ddof=1) * len(distances) ** -0.2
        kernels = np.exp(-np.square(gaps / bandwidth) / 2)
        densities.append(kernels @ np.histogram(distances, edges)[0])
    # Normalised on the grid: kernels reach below a distance of 0.
    first, second = (density / np.trapezoid(density, grid) for density in densities)
    overlap = np.trapezoid(np.minimum(first, second), grid)
    return float(overlap), float(entropy(first, second))


def _muspy_metrics(score: Score) -> dict[str, float]:
    import muspy  # slow to import, and large

    music = muspy.Music(
        resolution=score.ticks_per_beat,
        tracks=[
            muspy.Track(
                track.program,
                track.is_drum,
                notes=[
                    muspy.Note(onset, pitch, duration, velocity)
                    for onset, duration, pitch, velocity in track.notes.tolist()
                ],
            )
            for track in score.tracks
        ],
    )
    names = (
        *("pitch_range", "n_pitches_used", "n_pitch_classes_used", "polyphony", "polyphony_rate"),
        *("pitch_entropy", "pitch_class_entropy", "scale_consistency", "empty_beat_rate"),
        *("groove_consistency", "drum_in_pattern_rate", "drum_pattern_consistency"),
    )
    bar = 4 * score.ticks_per_beat
    arguments = {"groove_consistency": (bar,), "drum_in_pattern_rate": ("duple",)}
    if not score.num_notes:  # some metrics fail, others return 0
        return dict.fromkeys(names, np.nan)
    pitched = len(pitched_notes(score)) > 0
    rhythmic = ("empty_beat_rate", "groove_consistency")
    values = {}
    for name in names:
        given: Any = arguments.get(name, ())
        defined = pitched or name in rhythmic or name.startswith("drum")
        with np.errstate(all="ignore"):
            values[name] = float(getattr(muspy, name)(music, *given)) if defined else np.nan
    return values


def _bar_of(score: Score, notes: NoteArray) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the starts of all bars and the bar of each note."""
    starts = score.bar_starts()
    return starts, np.searchsorted(starts, notes["onset"], side="right") - 1


def _chroma_bars(score: Score) -> FloatArray:
    """Return the number of notes of each pitch class in each bar. [num_bars, 12]."""
    notes = pitched_notes(score)
    starts, bar = _bar_of(score, notes)
    cells = bar * PITCH_CLASSES + notes["pitch"] % PITCH_CLASSES
    counts = np.bincount(cells, minlength=len(starts) * PITCH_CLASSES)
    return counts.reshape(-1, PITCH_CLASSES).astype(float)


def _onset_bars(score: Score) -> NDArray[np.bool_]:
    """Return in which of 64 positions of each bar a note begins. [num_bars, 64]."""
    notes = score.notes
    starts, bar = _bar_of(score, notes)
    lengths = np.diff(starts, append=starts[-1:] + 1)
    lengths[-1] = lengths[-2] if len(lengths) > 1 else 4 * score.ticks_per_beat
    position = (notes["onset"] - starts[bar]) * GROOVE_STEPS // lengths[bar]
    bars = np.zeros((len(starts), GROOVE_STEPS), bool)
    bars[bar, np.minimum(position, GROOVE_STEPS - 1)] = True
    return bars if len(notes) else bars[:0]
