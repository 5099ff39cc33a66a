"""Comparison of two sets of pieces by descriptors and style, without pairs of pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from musicgen.metrics.descriptors import distribution_distance
from musicgen.metrics.style import (
    PROFILES,
    SIMILARITIES,
    Profiles,
    mean_similarity,
    style_profiles,
)
from musicgen.metrics.summary import CONFIDENCE, mean_of_valid
from musicgen.midi import Score

NUM_DRAWS = 40
MAX_HALF = 25  # largest number of pieces in half of a set


class Described(NamedTuple):
    """A sample of a piece, with its descriptors and its style."""

    piece: str
    values: dict[str, float]  # descriptors by name
    profiles: list[Profiles]  # in the order of `PROFILES`

    @classmethod
    def of(cls, piece: str, score: Score, values: dict[str, float]) -> Described:
        """Return a sample with these descriptors and with the style of the score."""
        return cls(piece, values, [style_profiles(score, profile) for profile in PROFILES])


def compare_sets(
    generated: Sequence[Described], originals: Sequence[Described], *, seed: int = 0
) -> list[dict[str, Any]]:
    """Return a table that compares two sets: one row for each descriptor and style similarity.

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
    names = list(originals[0].values)
    rng = np.random.default_rng(seed)
    half = min(len(new_pieces), len(old_pieces), 2 * MAX_HALF) // 2
    draws = []
    for _ in range(NUM_DRAWS):
        new, old = _draw(new_pieces, rng), _draw(old_pieces, rng)
        first_half, second_half = old[:half], old[half : 2 * half]
        generated_distances = _distances(new[:half], first_half, names)
        draws.append((generated_distances, _distances(second_half, first_half, names)))
    rows: dict[str, dict[str, Any]] = {}
    for name in names:
        new_values, old_values = _means(new_pieces, name), _means(old_pieces, name)
        rows[name] = {
            "descriptor": name,
            "n": int((~np.isnan(new_values)).sum()),
            "generated": mean_of_valid(new_values),
            "originals": mean_of_valid(old_values),
        }
    for name, kind in draws[0][0]:
        row = rows.setdefault(name, {"descriptor": name})
        for column, index in ((kind, 0), (f"{kind} of halves", 1)):
            middle, low, high = _quantiles([draw[index][name, kind] for draw in draws])
            row |= {column: middle, f"{column}_low": low, f"{column}_high": high}
    return list(rows.values())


def _draw(pieces: Sequence[Sequence[Described]], rng: np.random.Generator) -> list[Described]:
    """Return a random sample of each piece, in random order."""
    drawn = []
    for i in rng.permutation(len(pieces)):
        samples = pieces[i]
        drawn.append(samples[int(rng.integers(len(samples)))])
    return drawn


def _means(pieces: Sequence[Sequence[Described]], name: str) -> NDArray[np.float64]:
    """Return the mean of a descriptor over the samples of each piece: [num_pieces]."""
    values = [np.array([sample.values[name] for sample in samples]) for samples in pieces]
    return np.array([mean_of_valid(each) for each in values])


def _quantiles(values: Sequence[float]) -> list[float]:
    """Return the median and the ends of the middle 95%; NaN is left out."""
    valid = np.array([value for value in values if not np.isnan(value)])
    if not len(valid):
        return [np.nan, np.nan, np.nan]
    levels = 0.5, (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2
    # The nearest value, not an interpolation, as KL may be infinite.
    quantiles: list[float] = np.quantile(valid, levels, method="nearest").tolist()
    return quantiles


def _by_piece(samples: Sequence[Described]) -> list[list[Described]]:
    """Return one list of samples for each piece."""
    names = dict.fromkeys(sample.piece for sample in samples)
    return [[sample for sample in samples if sample.piece == name] for name in names]


def _distances(
    first: Sequence[Described], second: Sequence[Described], names: Sequence[str]
) -> dict[tuple[str, str], float]:
    """Return the distances between two sets, by (name of the descriptor, `similarity` or `KL`)."""
    distances: dict[tuple[str, str], float] = {}
    for name in names:
        columns = (np.array([piece.values[name] for piece in each]) for each in (first, second))
        overlap, divergence = distribution_distance(*columns)
        distances |= {(name, "similarity"): overlap, (name, "KL"): divergence}
    for i, profile in enumerate(PROFILES):
        pooled = (_pooled([piece.profiles[i] for piece in each]) for each in (first, second))
        distances[SIMILARITIES[profile], "similarity"] = mean_similarity(*pooled)
    return distances


def _pooled(pieces: Sequence[Profiles]) -> Profiles:
    """Return the sum of the histograms of all pieces for each role; pieces have equal weight."""
    roles = {role for piece in pieces for role in piece}
    return {
        role: np.sum([piece[role] for piece in pieces if role in piece], axis=0) for role in roles
    }
