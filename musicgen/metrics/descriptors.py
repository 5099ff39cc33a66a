"""Descriptors of pieces, and distances between the distributions of two sets of pieces.

Undefined values, such as a descriptor of drums in a piece without drums, are NaN.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from musicgen.metrics.summary import mean_of_valid
from musicgen.midi import NoteArray, Score, pitched_notes

FloatArray = NDArray[np.float64]

GROOVE_STEPS = 64  # positions in a bar, as in MusDr
CLASHES = (1, 11)  # semitones and major sevenths, plus any number of octaves

_PITCHED = (
    "pitch_range",
    "n_pitches_used",
    "n_pitch_classes_used",
    "polyphony",
    "polyphony_rate",
    "pitch_entropy",
    "pitch_class_entropy",
    "scale_consistency",
)
_TIMES = (
    "empty_beat_rate",
    "groove_consistency",
    "drum_in_pattern_rate",
    "drum_pattern_consistency",
)


def muspy_descriptors(score: Score) -> dict[str, float]:
    """Return the metrics of the package muspy for a piece (Dong et al. 2020), by name.

    `groove_consistency` assumes bars of 4 beats, and `drum_in_pattern_rate` duple time.
    """
    import muspy  # slow to import, and large

    tracks = []
    for track in score.tracks:
        notes = [muspy.Note(t, p, d, v) for t, d, p, v in track.notes.tolist()]
        tracks.append(muspy.Track(track.program, track.is_drum, notes=notes))
    music = muspy.Music(resolution=score.ticks_per_beat, tracks=tracks)
    bar = 4 * score.ticks_per_beat
    arguments: dict[str, Any] = {"groove_consistency": [bar], "drum_in_pattern_rate": ["duple"]}
    values = {}
    with np.errstate(all="ignore"):
        for names, num_notes in ((_PITCHED, len(pitched_notes(score))), (_TIMES, score.num_notes)):
            for name in names:  # without notes, some functions fail and others return 0
                function = getattr(muspy, name)
                value = function(music, *arguments.get(name, [])) if num_notes else np.nan
                values[name] = float(value)
    return values


def grooving_similarity(score: Score) -> float:
    """Return the rhythmic similarity of bars: 1 − the mean Hamming distance of all pairs of bars.

    A bar is a vector of 64 positions, with 1 where a note begins (Wu & Yang 2020, eq. 2). The
    similarity is NaN for a single bar.
    """
    onset, starts = score.notes["onset"], score.bar_starts()
    num_bars = len(starts)
    if not len(onset) or num_bars < 2:
        return np.nan
    bar = np.searchsorted(starts, onset, side="right") - 1
    lengths = np.append(np.diff(starts), starts[-1] - starts[-2])
    position = (onset - starts[bar]) * GROOVE_STEPS // lengths[bar]
    begins = np.zeros((num_bars, GROOVE_STEPS), bool)
    begins[bar, np.minimum(position, GROOVE_STEPS - 1)] = True
    # A position that is set in k of n bars differs in k (n - k) of the pairs of bars.
    count = begins.sum(axis=0)
    differing = (count * (num_bars - count)).sum() / (num_bars * (num_bars - 1) / 2)
    return float(1 - differing / GROOVE_STEPS)


def pitch_class_entropy(score: Score, num_bars: int) -> float:
    """Return the mean entropy in bits of the pitch classes in windows of `num_bars` bars.

    A window begins at every bar (Wu & Yang 2020, eq. 1). Windows without pitched notes are left
    out. The entropy is NaN without pitched notes.
    """
    from scipy.stats import entropy  # slow to import

    notes, starts = pitched_notes(score), score.bar_starts()
    counts = np.zeros((len(starts), 12))
    bar = np.searchsorted(starts, notes["onset"], side="right") - 1
    np.add.at(counts, (bar, notes["pitch"] % 12), 1)
    window = np.ones(min(num_bars, max(1, len(counts))))
    sums = np.stack([np.convolve(column, window, "valid") for column in counts.T], axis=1)
    sums = sums[sums.sum(axis=1) > 0]
    return float(entropy(sums, base=2, axis=1).mean()) if len(sums) else np.nan


def clash_share(notes: NoteArray, others: NoteArray | None = None) -> float:
    """Return the share of dissonant pairs (`CLASHES`) among pairs of notes that sound together.

    It is NaN if no notes sound together.

    Args:
        others: a pair is one of the notes and one of these; None: a pair is two of the notes.
    """
    seconds = notes if others is None else others
    ends = (each["onset"] + each["duration"] for each in (notes, seconds))
    together = np.maximum.outer(notes["onset"], seconds["onset"]) < np.minimum.outer(*ends)
    if others is None:
        np.fill_diagonal(together, False)
    intervals = np.subtract.outer(notes["pitch"], seconds["pitch"])[together] % 12
    return mean_of_valid(np.isin(intervals, CLASHES).astype(float))


def distribution_distance(generated: FloatArray, reference: FloatArray) -> tuple[float, float]:
    """Return the overlapping area and the KL divergence of a descriptor in two sets of pieces.

    They compare two densities (Yang & Lerch 2020): of the distances between all pairs of pieces in
    the generated set, and of the distances between generated and reference pieces. The densities
    are estimated by Gaussian kernels with Scott's rule. The overlapping area is the integral of
    their minimum; 1 is best. The divergence of the first from the second is in nats; 0 is best.

    Args:
        generated, reference: values of the descriptor, one for each piece. NaN is left out.

    Returns:
        NaN if a density is undefined: with fewer than three pieces, or if all distances are equal.
    """
    from scipy.spatial.distance import cdist, pdist  # slow to import
    from scipy.stats import entropy, gaussian_kde

    a, b = (values[~np.isnan(values), None] for values in (generated, reference))
    if len(a) < 3 or not len(b):
        return np.nan, np.nan
    within, between = pdist(a), cdist(a, b).ravel()
    if min(np.ptp(within), np.ptp(between)) <= 1e-9 * max(within.max(), between.max()):
        return np.nan, np.nan
    grid = np.linspace(0, max(within.max(), between.max()), 256)
    densities = [gaussian_kde(distances)(grid) for distances in (within, between)]
    # Normalised on the grid, as kernels extend below a distance of 0.
    first, second = (density / np.trapezoid(density, grid) for density in densities)
    overlap = np.trapezoid(np.minimum(first, second), grid)
    return float(overlap), float(entropy(first, second))
