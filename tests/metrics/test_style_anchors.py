"""Anchors of style similarity against hand-computed cases."""

import numpy as np
import pytest

from musicgen.metrics.style_anchors import (
    StyleLabel,
    anchor_similarities,
    draw_partners,
    style_labels,
)
from musicgen.midi import Score, Track, notes_from

LABELS = {
    "a1": StyleLabel("a", "A"),
    "a2": StyleLabel("a", "A"),
    "b1": StyleLabel("b", "A"),
    "c1": StyleLabel("c", "C"),
    "none": StyleLabel(),
}


def beats(*onsets: int) -> Score:
    """A piano piece with a short note at each beat."""
    return Score(480, [Track(notes=notes_from([(480 * beat, 60, 60, 64) for beat in onsets]))])


def test_partners_by_relation():
    rng = np.random.default_rng(0)
    found = draw_partners("a1", LABELS, 9, rng)
    assert {anchor: set(names) for anchor, names in found.items()} == {
        "chance": {"c1", "none"},
        "same family": {"b1"},
        "same style": {"a2"},
        "same song": {"a1"},
    }
    assert set(draw_partners("none", LABELS, 9, rng)["chance"]) == LABELS.keys() - {"none"}
    assert len(draw_partners("none", LABELS, 2, rng)["chance"]) == 2


def test_values_by_hand():
    pieces = {
        "a1": beats(0, 1),
        "a2": beats(0),  # cosine with the part {0}: 1
        "b1": beats(0, 1, 2, 3),  # 1/2
        "c1": beats(1),  # 0
        "none": Score(),  # left out: no note
    }
    found = anchor_similarities([("a1", beats(0))], LABELS, pieces.get)
    values = {anchor: pytest.approx(v[0]) for anchor, v in found["onset_duration"].items()}
    assert values == {
        "chance": 0.0,
        "same family": 0.5,
        "same style": 1.0,
        "same song": 0.5**0.5,
    }


def test_pieces_without_partners_are_nan():
    labels = {"x": StyleLabel("s")}
    found = anchor_similarities([("x", beats(0))], labels, lambda name: beats(0))
    assert np.isnan([values[0] for values in found["time_pitch"].values()]).all()
    found = anchor_similarities([("x", beats(0))], labels, lambda name: None)
    assert np.isnan([values[0] for values in found["onset_duration"].values()]).all()


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
    [
        ("maj001.ROCK_a.mid", "auto", ("ROCK_a", "ROCK")),
        ("midi/s1.casio-blues_Blues.MID", "auto", ("casio-blues_Blues", "casio-blues")),
        ("song.mid", "auto", ("", "")),
        ("funk/song.mid", "auto", ("funk", "")),
        ("rock/soft/song.mid", "auto", ("rock/soft", "rock")),
        ("funk/funk-02_1.mid", r"(?P<family>\w+)/(?P<style>.+)_\d\.mid", ("funk-02", "funk")),
        ("x.mid", r"(?P<style>\w)\.mid", ("x", "")),
        ("other", r"(?P<style>\w)\.mid", ("", "")),
    ],
)
def test_labels_from_names(name, pattern, expected):
    assert style_labels([name], pattern) == {name: StyleLabel(*expected)}
