"""Two sets of pieces, which need not be pairs: their descriptors and their style."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from musicgen.metrics.descriptors import distribution_distance
from musicgen.metrics.style import PROFILES, Profiles, mean_similarity, style_profiles
from musicgen.metrics.summary import CONFIDENCE, mean_of_valid
from musicgen.midi import Score

NUM_DRAWS = 40
MAX_HALF = 25  # pieces


class Described(NamedTuple):
    """A sample of a piece: its descriptors by name, and its profiles of style."""

    piece: str
    values: dict[str, float]
    profiles: list[Profiles]

    @classmethod
    def of(cls, piece: str, score: Score, values: dict[str, float]) -> Described:
        """Return a score with these descriptors."""
        return cls(piece, values, [style_profiles(score, profile) for profile in PROFILES])


def compare_sets(
    generated: Sequence[Described], originals: Sequence[Described], *, seed: int = 0
) -> list[dict[str, Any]]:
    """Compare two sets of pieces; return rows.

    A row of a descriptor has its means, and as `similarity` and `KL` what `distribution_distance`
    returns; one of style has the cosine of the sets' histograms, the mean over roles. These are
    medians over draws of as many pieces of both sets, half of the smaller one and at most 25. For
    scale, `NAME of halves` is that of two halves of the originals. `low` and `high` hold the middle
    95% of the draws; half-samples spread about as estimates from all pieces do (McCarthy 1969).
    A piece has one of its samples in a draw, and their mean in a mean.
    """
    sets = {"generated": _by_piece(generated), "originals": _by_piece(originals)}
    rng, half = np.random.default_rng(seed), min(*map(len, sets.values()), 2 * MAX_HALF) // 2
    draws, names = [], list(originals[0].values)
    for _ in range(NUM_DRAWS):
        new, old = (
            [pieces[i][rng.integers(len(pieces[i]))] for i in rng.permutation(len(pieces))]
            for pieces in sets.values()
        )
        first = old[:half]
        draws.append([_distances(x, first, names) for x in (new[:half], old[half : 2 * half])])
    rows: dict[str, dict[str, Any]] = {}
    for name in names:
        columns = {
            side: [mean_of_valid(np.array([x.values[name] for x in each])) for each in pieces]
            for side, pieces in sets.items()
        }
        means = {side: mean_of_valid(np.array(column)) for side, column in columns.items()}
        count = int((~np.isnan(columns["generated"])).sum())
        rows[name] = {"descriptor": name, "n": count, **means}
    levels = 0.5, (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2
    for name, kind in draws[0][0]:
        row = rows.setdefault(name, {"descriptor": name})
        for column, index in ((kind, 0), (f"{kind} of halves", 1)):
            found = np.array([draw[index][name, kind] for draw in draws])
            found = found[~np.isnan(found)] if not np.isnan(found).all() else found[:1]
            # KL may be infinite.
            middle, low, high = np.quantile(found, levels, method="nearest").tolist()
            row |= {column: middle, f"{column}_low": low, f"{column}_high": high}
    return list(rows.values())


def _by_piece(samples: Sequence[Described]) -> list[list[Described]]:
    """Return the samples of each piece."""
    names = dict.fromkeys(sample.piece for sample in samples)
    return [[sample for sample in samples if sample.piece == name] for name in names]


def _distances(
    first: Sequence[Described], second: Sequence[Described], names: Sequence[str]
) -> dict[tuple[str, str], float]:
    """Return the distances of two sets, by the name of a descriptor or profile and by kind."""
    distances: dict[tuple[str, str], float] = {}
    for name in names:
        columns = (np.array([piece.values[name] for piece in each]) for each in (first, second))
        overlap, divergence = distribution_distance(*columns)
        distances |= {(name, "similarity"): overlap, (name, "KL"): divergence}
    for i, profile in enumerate(PROFILES):
        pooled = (_pooled([piece.profiles[i] for piece in each]) for each in (first, second))
        distances[f"style, {profile}", "similarity"] = mean_similarity(*pooled)
    return distances


def _pooled(pieces: Sequence[Profiles]) -> Profiles:
    """Return the sum of each role's histograms, to which all pieces contribute equally."""
    roles = {role for piece in pieces for role in piece}
    return {role: np.sum([x[role] for x in pieces if role in x], axis=0) for role in roles}
