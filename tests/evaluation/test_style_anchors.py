"""Anchors of style similarity against hand-computed cases."""

import numpy as np
import pytest

from musicgen.evaluation.style import anchor_similarities, style_labels
from musicgen.midi import Score, Track, notes_from

LABELS = {"a1": "a", "a2": "a", "b1": "b", "b2": "b", "none": ""}


def beats(*onsets: int) -> Score:
    """A piano piece with a short note at each beat."""
    return Score(480, [Track(notes=notes_from([(480 * beat, 60, 60, 64) for beat in onsets]))])


def test_values_by_hand():
    pieces = {
        "a1": beats(0, 1),  # cosine with the part {0}: √½
        "a2": beats(0),  # 1
        "b1": beats(0, 1, 2, 3),  # 1/2
        "b2": beats(1),  # 0
        "none": Score(),  # left out: no note
    }
    found = anchor_similarities([("a1", beats(0)), ("none", beats(0))], LABELS, pieces.get)
    values = found["onset_duration"]
    assert values["same song"] == pytest.approx([0.5**0.5, np.nan], nan_ok=True)
    # A piece without a style is compared with all others.
    assert values["chance"] == pytest.approx([1 / 4, (0.5**0.5 + 1 + 1 / 2 + 0) / 4])


def test_pieces_without_partners_are_nan():
    labels = {"x": "s"}
    found = anchor_similarities([("x", beats(0))], labels, lambda name: beats(0))
    assert np.isnan([values[0] for values in found["time_pitch"].values()]).all()
    found = anchor_similarities([("x", beats(0))], labels, lambda name: None)
    assert np.isnan([values[0] for values in found["onset_duration"].values()]).all()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("maj001.ROCK_a.mid", "ROCK_a"),
        ("midi/s1.casio-blues_Blues.MID", "casio-blues_Blues"),
        ("song.mid", ""),
        ("funk/song.mid", "funk"),
        ("rock/soft/song.mid", "rock/soft"),
    ],
)
def test_labels_from_names(name, expected):
    assert style_labels([name]) == {name: expected}
