"""Chord symbols of lead sheets: markers written by hand, and the tones that music21 gives them."""

import pytest

from musicgen.midi.key import chord_marker, transposed_marker
from musicgen.tokenization.chords import CHORDS, INTERVALS, QUALITIES, chord_index


@pytest.mark.parametrize(
    ("symbol", "marker"),
    [
        ("Am7/E", "A_m7_E"),
        ("F♯dim", "F#_o_F#"),
        ("E♭△7", "Eb_M7_Eb"),
        ("C(#5)", "C_+_C"),  # and not C#
        ("(Am)", "A_m_A"),
        ("G7(#9, b13)", "G_7_G"),
        ("CmMaj7", "C_m_C"),
        ("C6/9/E", "C_M_E"),
        ("Calt", "C_7_C"),
        ("N.C.", "N_N_N"),
        *((words, None) for words in ("Fine", "Coda", "D.S.", "Chorus", "A1", "add9", "H7", "")),
    ],
)
def test_symbols(symbol, marker):
    assert chord_marker(symbol) == marker


FIGURES = (
    "C Cm C7 Cmaj7 Cm7 Cdim Cdim7 C+ Csus4 Csus2 C6 Cm6 C9 Cm9 C11 C13 Cø7 C/E F#m7b5 B-7/D G7sus4"
)


@pytest.mark.parametrize("figure", FIGURES.split())
def test_tones_are_those_of_music21(figure):
    from music21.harmony import ChordSymbol

    symbol = ChordSymbol(figure)  # B- is its B flat
    index = chord_index(chord_marker(figure.replace("B-", "Bb")))
    root, quality = divmod(index, len(QUALITIES))
    tones = {(root + interval) % 12 for interval in INTERVALS[QUALITIES[quality]]}
    assert root == symbol.root().pitchClass
    assert tones <= {pitch.pitchClass for pitch in symbol.pitches}
    third = {(root + interval) % 12 for interval in (3, 4)}
    assert third & tones == third & {pitch.pitchClass for pitch in symbol.pitches}


@pytest.mark.parametrize("fifths", range(-6, 7))
def test_transposed_chords_sound_so_many_fifths_higher(fifths):
    for index, marker in enumerate(CHORDS[:-1]):
        root, quality = marker.split("_")
        moved = transposed_marker(f"{root}_{quality}_{root}", fifths)
        expected = (index + 7 * fifths * len(QUALITIES)) % (len(CHORDS) - 1)
        assert chord_index(moved) == expected
    assert transposed_marker("Bb_7_D", -2) == "Ab_7_C"
    assert transposed_marker("N_N_N", 3) == "N_N_N"
