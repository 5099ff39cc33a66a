"""Four-part writing: hand-computed cases."""

from dataclasses import replace

import pytest

from musicgen.errors import UserError
from musicgen.metrics.part_writing import part_writing
from musicgen.midi import notes_from
from tests.metrics.builders import four_parts as piece

BEAT = 12


C, G = (72, 67, 64, 48), (71, 67, 62, 55)
G7 = (71, 65, 62, 43)


def test_ranges_and_crossings():
    # B5 and D2 are outside their ranges; the tenor is above the alto for two beats of five.
    score = piece(C, (83, 60, 64, 38), C, beats=[2, 2, 1])
    found = part_writing(score)
    assert found["out_of_range"] == 2 / 12
    assert found["crossed"] == 2 / 5
    assert part_writing(replace(score, tracks=score.tracks[::-1])) == found
    # A rest between parts what would be parallel fifths.
    assert part_writing(piece(C, (None,) * 4, (74, 69, 66, 50)))["parallel_fifths"] == 0


@pytest.mark.parametrize(
    ("chord", "fits"),
    [
        (C, True),
        (G7, True),  # with all four tones
        ((65, 65, 59, 43), True),  # without its fifth
        ((72, 67, 60, 48), True),  # C and G alone
        ((74, 67, 64, 48), False),  # a ninth
        ((72, 65, 60, 55), False),  # a fourth suspended, F over C and G
        ((72, 72, 60, 48), False),  # one tone
        ((68, 65, 62, 59), True),  # a diminished seventh chord
        ((68, 64, 60, 48), True),  # an augmented triad
        ((72, 65, 64, 53), False),  # a major seventh chord without its third
    ],
)
def test_the_melody_fits_if_its_chord_is_a_triad_or_a_seventh_chord(chord, fits):
    assert part_writing(piece(chord))["melody_fit"] == fits


def test_a_melody_is_measured_where_its_notes_begin():
    # The second chord is none, but the melody began its note before.
    score = piece(C, (72, 70, 65, 48), G)
    assert part_writing(score)["melody_fit"] == 2 / 3
    score.tracks[0].notes = notes_from([(0, 2 * BEAT, 72, 80), (2 * BEAT, BEAT, 71, 80)])
    assert part_writing(score)["melody_fit"] == 1


@pytest.mark.parametrize("num_voices", [3, 5])
def test_other_numbers_of_voices_are_refused(num_voices):
    with pytest.raises(UserError, match=rf"^{num_voices} tracks with notes; .* needs 4$"):
        part_writing(piece((*C, 40)[:num_voices]))
