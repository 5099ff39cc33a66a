"""Descriptors of pieces, and comparisons of two sets of pieces by descriptors and style.

Undefined values, such as a descriptor of drums in a piece without drums, are NaN.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from musicgen.metrics.intervals import CONFIDENCE, mean_of_valid
from musicgen.metrics.style import PROFILES, SIMILARITIES, Profiles, mean_similarity
from musicgen.midi import Score, pitched_notes
from musicgen.midi.score import FloatArray

Sample = tuple[str, Mapping[str, float], Sequence[Profiles]]
"""The name of a piece, its descriptors by name, and its style in the order of `PROFILES`."""

GROOVE_STEPS = 64  # positions in a bar, as in MusDr
NUM_DRAWS = 40
MAX_HALF = 25  # largest number of pieces in half of a set

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
    lengths = np.diff(score.bar_lines())
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
    windows = np.lib.stride_tricks.sliding_window_view(counts, min(num_bars, len(counts)), axis=0)
    sums = windows.sum(axis=-1)
    sums = sums[sums.sum(axis=1) > 0]
    return float(entropy(sums, base=2, axis=1).mean()) if len(sums) else np.nan


def distribution_distance(generated: FloatArray, reference: FloatArray) -> tuple[float, float]:
    """Return the overlapping area and the KL divergence of a descriptor in two sets of pieces.

    They compare two densities (Yang & Lerch 2020): of the distances between all pairs of pieces in
    the generated set, and of the distances between generated and reference pieces. The densities
    are estimated by Gaussian kernels with Scott's rule. The overlapping area is the integral of
    their minimum; 1 is best. The divergence of the first from the second is in nats; 0 is best.

    Args:
        generated, reference: values of the descriptor, one per piece. NaN is left out.

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


def compare_sets(
    generated: Sequence[Sample], originals: Sequence[Sample], *, seed: int = 0
) -> list[dict[str, Any]]:
    """Return a table that compares two sets: one row per descriptor and style similarity.

    The row of a descriptor has its means. Its columns `similarity` and `KL` are the results of
    `distribution_distance`. For a style similarity, `similarity` is the cosine of the histograms of
    both sets, averaged over roles.

    Similarities and divergences are medians over random draws. A draw takes from each set half as
    many pieces as the smaller set has, at most 25. `low` and `high` contain the middle 95% of the
    draws. Half-samples vary about as much as estimates from all pieces (McCarthy 1969). For
    comparison, `NAME of halves` compares two halves of the originals.

    If a piece has several samples, a draw uses one of them, and a mean uses their mean.

    Args:
        seed: seed of the draws.
    """
    new_pieces, old_pieces = _by_piece(generated), _by_piece(originals)
    names = list(originals[0][1])
    rng = np.random.default_rng(seed)
    half = min(len(new_pieces), len(old_pieces), 2 * MAX_HALF) // 2
    draws = []
    for _ in range(NUM_DRAWS):
        new, old = _draw(new_pieces, rng), _draw(old_pieces, rng)
        first_half, second_half = old[:half], old[half : 2 * half]
        distances = _distances(new[:half], first_half, names)
        draws.append((distances, _distances(second_half, first_half, names)))
    rows: dict[str, dict[str, Any]] = {}
    for name in names:
        means = [
            [mean_of_valid([values[name] for _, values, _ in x]) for x in pieces]
            for pieces in (new_pieces, old_pieces)
        ]
        new_values, old_values = map(np.array, means)
        rows[name] = {
            "descriptor": name,
            "n": int((~np.isnan(new_values)).sum()),
            "generated": mean_of_valid(new_values),
            "originals": mean_of_valid(old_values),
        }
    for name, kind in draws[0][0]:
        row = rows.setdefault(name, {"descriptor": name})
        for column, index in ((kind, 0), (f"{kind} of halves", 1)):
            values = np.array([draw[index][name, kind] for draw in draws])
            valid, quantiles = values[~np.isnan(values)], 3 * [np.nan]
            if len(valid):
                levels = 0.5, (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2
                # The nearest value, not an interpolation, as KL may be infinite.
                quantiles = np.quantile(valid, levels, method="nearest").tolist()
            row |= zip((column, f"{column}_low", f"{column}_high"), quantiles, strict=True)
    return list(rows.values())


def _by_piece(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Return one list of samples per piece."""
    pieces: dict[str, list[Sample]] = {}
    for sample in samples:
        pieces.setdefault(sample[0], []).append(sample)
    return list(pieces.values())


def _draw(pieces: Sequence[Sequence[Sample]], rng: np.random.Generator) -> list[Sample]:
    """Return a random sample of each piece, in random order."""
    drawn = (pieces[i] for i in rng.permutation(len(pieces)))
    return [samples[int(rng.integers(len(samples)))] for samples in drawn]


def _distances(
    first: Sequence[Sample], second: Sequence[Sample], names: Sequence[str]
) -> dict[tuple[str, str], float]:
    """Return the distances between two sets, by (name of the descriptor, `similarity` or `KL`)."""
    distances: dict[tuple[str, str], float] = {}
    for name in names:
        columns = (np.array([values[name] for _, values, _ in x]) for x in (first, second))
        overlap, divergence = distribution_distance(*columns)
        distances |= {(name, "similarity"): overlap, (name, "KL"): divergence}
    for i, profile in enumerate(PROFILES):
        pooled = (_pooled([profiles[i] for *_, profiles in x]) for x in (first, second))
        distances[SIMILARITIES[profile], "similarity"] = mean_similarity(*pooled)
    return distances


def _pooled(pieces: Sequence[Profiles]) -> Profiles:
    """Return the sum of the histograms of all pieces per role; pieces have equal weight."""
    roles = {role for piece in pieces for role in piece}
    return {
        role: np.sum([piece[role] for piece in pieces if role in piece], axis=0) for role in roles
    }
