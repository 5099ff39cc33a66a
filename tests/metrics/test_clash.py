"""Clashes: counted by hand."""

import numpy as np
import pytest

from musicgen.metrics.descriptors import clash_share
from musicgen.midi import notes_from


def test_semitones_and_major_sevenths_of_notes_that_sound_together_clash():
    # C4 and B5 clash; so would C4 and C#4, which begins as C4 ends. E4 sounds with all of them.
    notes = notes_from([(0, 4, 60, 80), (0, 8, 83, 80), (2, 6, 64, 80), (4, 4, 61, 80)])
    assert clash_share(notes) == pytest.approx(1 / 5)
    assert clash_share(notes[:1], notes[1:]) == pytest.approx(1 / 2)


def test_minor_ninths_clash_and_a_note_does_not_pair_with_itself():
    notes = notes_from([(0, 4, 60, 80), (1, 1, 73, 80), (1, 1, 60, 80)])
    assert clash_share(notes) == pytest.approx(2 / 3)
    assert np.isnan(clash_share(notes[:1]))
