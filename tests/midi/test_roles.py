"""Roles of tracks by General MIDI program, and names of pitches."""

import pytest

from musicgen.midi import Score, Track, notes_by_role, notes_from, pitch_name, role


# Edges of families of the General MIDI 1 sound set, from 0.
@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (0, "Piano"),
        (7, "Piano"),
        (8, "Chromatic percussion"),
        (31, "Guitar"),
        (32, "Bass"),
        (47, "Strings"),
        (48, "Ensemble"),
        (63, "Brass"),
        (112, "Percussive"),
        (127, "Sound effects"),
    ],
)
def test_roles_are_program_families(program, expected):
    assert role(Track("Drums", program)) == expected
    assert role(Track("Piano", program, is_drum=True)) == "Drums"


def test_notes_of_one_role_are_joined():
    a, b, c = ([(onset, 1, 60, 64)] for onset in (5, 0, 3))
    tracks = [Track("left", 0, notes=notes_from(a)), Track("", 33, notes=notes_from(b))]
    tracks.append(Track("right", 1, notes=notes_from(c)))
    joined = notes_by_role(Score(tracks=tracks))
    assert {name: notes["onset"].tolist() for name, notes in joined.items()} == {
        "Piano": [5, 3],
        "Bass": [0],
    }


def test_pitch_names():
    assert [pitch_name(pitch) for pitch in (0, 60, 61, 127)] == ["C-1", "C4", "C#4", "G9"]
