"""Four-part writing: hand-computed cases, and music21's parallels in chorales by Bach."""

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest

from musicgen.data.corpora import BachChorales
from musicgen.errors import UserError
from musicgen.metrics.part_writing import part_writing, sonorities
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


@pytest.mark.parametrize("name", ["bwv268", "bwv40.8", "bwv248.64-s", "bwv371"])
def test_parallels_in_bach_are_those_of_music21(name):
    from music21.note import Note
    from music21.voiceLeading import VoiceLeadingQuartet

    corpus = BachChorales()
    (score,) = (corpus.read_piece(piece) for piece in corpus.pieces() if piece.name == name)
    edges, pitches = sonorities(score)
    notes = {pitch: Note(midi=int(pitch)) for pitch in np.unique(pitches[pitches >= 0])}
    fifths = octaves = 0
    for before, after in pairwise(pitches):
        for high, low in combinations(range(4), 2):
            four = [before[high], after[high], before[low], after[low]]
            if min(four) < 0:
                continue
            quartet = VoiceLeadingQuartet(*(notes[pitch] for pitch in four))
            fifths += quartet.parallelFifth()
            octaves += quartet.parallelUnisonOrOctave() or quartet.antiParallelMotion("P8")
    beats = edges[-1] - edges[0]
    found = part_writing(score)
    assert fifths + octaves
    assert found["parallel_fifths"] == pytest.approx(100 * fifths / beats)
    assert found["parallel_octaves"] == pytest.approx(100 * octaves / beats)
