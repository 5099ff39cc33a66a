"""Structureness of bars, against every choice of segments."""

import numpy as np
import pytest

from musicgen.metrics.repeated_bars import (
    PENALTY,
    harmony_and_rhythm,
    segment_fitness,
    structureness,
)


def brute_force(similarities: np.ndarray, first: int, length: int) -> float:
    """Return the fitness of a segment by trying all segments that do not overlap."""
    n = len(similarities)

    def choices(start: int) -> list[tuple[float, int]]:
        if start + length > n:
            return [(0.0, 0)]
        score = sum(similarities[start + k, first + k] for k in range(length))
        taken = [(score + rest, k + 1) for rest, k in choices(start + length)]
        return taken + choices(start + 1)

    sigma, count = max(choices(0))
    quality = (sigma - length) / (length * max(1, count))
    covered = (count - 1) * length / n
    if min(quality, covered) <= 0:
        return 0.0
    return 2 * quality * covered / (quality + covered)


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_fitness_is_that_of_the_best_choice(n):
    similarities = np.random.default_rng(n).uniform(-0.5, 1, (n, n))
    similarities = (similarities + similarities.T) / 2
    np.fill_diagonal(similarities, 1)
    fitness = segment_fitness(similarities)
    assert fitness.shape == (n + 1, n)
    for length in range(1, n + 1):
        for first in range(n - length + 1):
            expected = brute_force(similarities, first, length)
            assert fitness[length, first] == pytest.approx(expected)


def piece(form: str) -> np.ndarray:
    """Return a bar with a pitch of its own for each letter: bar, step, pitch, duration."""
    bars = enumerate(form)
    return np.array([(bar, 4 * k, 60 + ord(x) % 12, 4) for bar, x in bars for k in range(3)])


def test_a_piece_of_two_equal_halves():
    """The half covers the other one alone: score and coverage are 1/2 each."""
    found = structureness(piece("abcdefabcdef"), 12)
    # The highest of three to eight bars: two of six cover half of the piece besides themselves.
    assert found["short"] == pytest.approx(0.5)
    assert np.isnan(found["mid"])
    assert np.isnan(found["long"])


def test_what_never_returns_has_no_structure():
    likeness = harmony_and_rhythm(piece("abcdefghijkl"), 14)
    assert (likeness[:12, :12][~np.eye(12, dtype=bool)] == PENALTY).all()
    assert (likeness[12, 13], likeness[0, 12]) == (1, PENALTY)  # empty bars are alike
    assert structureness(piece("abcdefghijkl"), 12)["short"] == 0
