"""Measures of the leading part: hand-computed cases."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from musicgen.metrics.melody import (
    leading_part,
    melody_measures,
    notes_by_bar,
    recovered_leap_share,
    repeated_note_share,
    silent_bar_share,
    skyline,
)
from musicgen.midi import Score, TimeSignature, Track
from tests.metrics import builders

tune = partial(builders.piano, step=480)  # rows of quarters


def line(*pitches):
    return tune(*((i, 1, pitch) for i, pitch in enumerate(pitches))).notes


def song(*tracks):
    """A score of (name, program, rows)."""
    return Score(
        480, [Track(name, program, notes=tune(*rows).notes) for name, program, rows in tracks]
    )


def test_repeated_notes_are_those_of_unisons():
    assert repeated_note_share(line(60, 60, 62, 62, 62)) == 3 / 4
    assert np.isnan(repeated_note_share(line(60)))


def test_a_leap_is_recovered_if_the_melody_turns_back():
    # A fifth up and a step down; a fourth down and a third up; a fourth up and further up. A third
    # is no leap, and nothing follows the last leap.
    assert recovered_leap_share(line(60, 67, 65, 60, 64, 69, 71, 60)) == 2 / 3
    assert recovered_leap_share(line(60, 67, 67, 65)) == 0  # a repeated note is no turn
    assert np.isnan(recovered_leap_share(line(60, 64, 60)))


def test_the_top_notes_are_not_those_under_a_higher_one():
    # A whole note with moving notes under it; then a chord; then a note that a higher one leaves.
    score = tune((0, 4, 72), (1, 1, 60), (2, 1, 62), (4, 1, 60), (4, 1, 76), (4, 1, 67), (5, 1, 55))
    assert skyline(score.notes)["pitch"].tolist() == [72, 76, 55]
    # A legato of a tenth of a quarter hides nothing.
    assert skyline(tune((0, 1.1, 72), (1, 1, 71)).notes)["pitch"].tolist() == [72, 71]
    assert len(skyline(score.notes[:0])) == 0


@pytest.mark.parametrize(
    ("tracks", "pitches"),
    [
        ([("Piano", 0, [(0, 1, 84)]), ("Singstimme Voice", 52, [(0, 1, 60)])], [60]),
        ([("PIANO", 0, [(0, 1, 84)]), ("MELODY", 0, [(0, 1, 60)])], [60]),
        ([(name, 52, [(0, 1, 60 - i)]) for i, name in enumerate(("Soprano", "Alto"))], [60]),
        ([("Alto Sax", 65, [(0, 1, 60)]), ("Piano", 0, [(0, 1, 72)])], [72]),
        ([("RH", 0, [(0, 1, 72)]), ("LH", 0, [(1, 1, 48)])], [72, 48]),
        ([("Piano", 0, [(0, 1, 60)]), ("BB Bass", 58, [(1, 1, 48)])], [60]),
        ([("Contrabass", 43, [(0, 1, 40)])], [40]),
    ],
)
def test_the_leading_part(tracks, pitches):
    score = song(*tracks, ("Drums", 0, [(3, 1, 99)]))
    score.tracks[-1].is_drum = True
    assert leading_part(score)["pitch"].tolist() == pitches


def test_a_voice_that_falls_silent_leads_still():
    piece = song(("Voice", 52, [(0, 1, 60)]), ("Piano", 0, [(0, 1, 72)]))
    new = replace(
        piece, tracks=[replace(piece.tracks[0], notes=piece.tracks[0].notes[:0]), piece.tracks[1]]
    )
    assert leading_part(new, piece)["pitch"].tolist() == []
    assert leading_part(new)["pitch"].tolist() == [72]
    # A file whose tracks have other names is measured by its own.
    assert leading_part(song(("Track 1", 0, [(0, 1, 64)])), piece)["pitch"].tolist() == [64]


def test_bars_are_silent_without_a_note_or_a_held_one():
    # Bars of three quarters: a note, held into the second bar; none; a note that ends on the line.
    score = song(("Voice", 52, [(0, 4, 60), (9, 3, 62), (15, 1, 60)]), ("Piano", 0, [(0, 18, 48)]))
    score.time_signatures = [TimeSignature(0, 3, 4)]
    assert silent_bar_share(score, leading_part(score)) == 2 / 6
    assert notes_by_bar(score).tolist() == [2, 0, 0, 1, 0, 1]
    found = melody_measures(score)
    assert found["bars_without_lead"] == 2 / 6
    assert found["lead_notes_per_bar"] == 3 / 6
    assert found["lead_range"] == 2
    assert [found[f"notes_per_bar_{i}"] for i in range(1, 5)] == [1, 0.5, 0, 1]
