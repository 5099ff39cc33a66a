"""Parts: notes go to the part that played notes like them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from musicgen.midi import notes_from
from musicgen.midi.extension import find_parts

SONG = [(onset, 60 * (1 + onset % 3)) for onset in range(0, 3840, 240)]


@given(st.permutations([30, 50, 70, 90]), st.integers(-5, 5), st.booleans())
def test_parts_in_registers_of_their_own_keep_them(registers, shift, at_once):
    """Also if notes of all begin together, and in other registers nearby."""
    parts = [
        notes_from([(onset + 7 * i * (not at_once), length, low, 64) for onset, length in SONG])
        for i, low in enumerate(registers)
    ]
    found = [find_parts(moved(part, shift), parts) for part in parts]
    assert [each.tolist() for each in found] == [[i] * len(SONG) for i in range(4)]


def moved(notes, semitones):
    notes = notes.copy()
    notes["pitch"] += semitones
    return notes


def test_place_and_duration_tell_parts_of_one_register_apart():
    melody = notes_from([(onset, 240, 67, 90) for onset in range(0, 1920, 480)])
    chords = notes_from([(o, 240, p, 60) for o in range(0, 1920, 480) for p in (60, 64)])
    new = notes_from([(0, 240, 66, 64), (0, 240, 62, 64), (0, 240, 58, 64), (480, 240, 68, 64)])
    assert find_parts(new, [melody, chords]).tolist() == [1, 1, 0, 0]
    long = notes_from([(0, 1920, 67, 64), (1920, 1920, 65, 64)])
    assert find_parts(moved(long, 1), [melody, long]).tolist() == [1, 1]


def test_a_part_that_has_not_played_takes_no_note_and_the_nearest_takes_a_far_one():
    low, none = notes_from([(0, 240, 24, 64)]), notes_from([])
    far = notes_from([(0, 9600, 127, 64)])
    assert find_parts(far, [none, low]).tolist() == [1]
    assert find_parts(np.concatenate([low, far]), [low, none]).tolist() == [0, 0]
