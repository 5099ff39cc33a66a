"""Sets of pieces that are made by hand, and drawn from known distributions."""

import numpy as np
import pytest

from musicgen.metrics.descriptors import Sample, compare_sets


def pieces(values, histogram) -> list[Sample]:
    profiles = 4 * [{"Piano": np.array(histogram)}]
    return [(str(x), {"x": x, "none": np.nan}, profiles) for x in values]


def test_other_sets_are_farther_than_two_halves_of_one():
    rng = np.random.default_rng(0)
    originals = pieces(rng.normal(size=40), [1.0, 0.0])
    x, none, *styles = compare_sets(pieces(rng.normal(3, 1, 30), [0.6, 0.8]), originals)
    assert (x["n"], none["n"]) == (30, 0)
    assert x["generated"] == pytest.approx(3, abs=0.6)
    assert x["similarity_high"] < x["similarity of halves_low"] < x["similarity of halves"] < 1
    assert x["KL_low"] > x["KL of halves_high"]
    assert np.isnan([none["similarity"], none["KL of halves_high"]]).all()
    for row in styles:
        assert row["similarity"] == pytest.approx(0.6)
        assert row["similarity of halves"] == pytest.approx(1)
    same, *_ = compare_sets(pieces(rng.normal(size=30), [1.0, 0.0]), originals)
    assert same["similarity"] > same["similarity of halves_low"]


def test_samples_of_one_prompt_are_one_piece():
    once = pieces(np.random.default_rng(0).normal(size=12), [1.0, 0.0])
    expected, *_ = compare_sets(once, once)
    again, *_ = compare_sets([*6 * once[:2], *2 * once], 4 * once)
    assert (again["n"], again["generated"]) == (12, pytest.approx(expected["generated"]))
    few, *_ = compare_sets(3 * once[:2], once)  # a draw has one sample of one piece
    assert np.isnan(few["similarity"])
