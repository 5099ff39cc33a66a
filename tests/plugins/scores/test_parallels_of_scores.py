"""Parallels in chorales by Bach are those that music21 finds in the same scores."""

from itertools import combinations, pairwise

import numpy as np
import pytest

from musicgen.data.corpora import BachChorales
from musicgen.metrics.part_writing import part_writing, sonorities


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
