"""Measures of what listeners notice, against hand-computed cases."""

import numpy as np
import pytest

from musicgen.metrics.listening import (
    ChordChange,
    bass_line,
    chord_steps,
    known_step_share,
    listening_measures,
    melody_motifs,
    motif_return,
    skyline,
)
from musicgen.midi import Score, TimeSignature, Track, notes_from

TPB = 480
STEP = TPB // 4
BAR = 16 * STEP
C, F = frozenset({0, 4, 7}), frozenset({5, 9, 0})


def notes(*rows):
    """Rows of (onset, length, pitch), in sixteenths."""
    return notes_from([(onset * STEP, length * STEP, pitch, 64) for onset, length, pitch in rows])


def piano(*rows, is_drum=False) -> Score:
    return Score(TPB, [Track("", 0, is_drum, notes(*rows))])


def test_skyline_is_the_highest_note_and_hides_what_sounds_below_it():
    # A chord; a lower note under its held top; one after it ends; a higher one above a held one.
    piece = notes((0, 8, 48), (0, 8, 64), (0, 8, 72), (4, 2, 67), (8, 8, 60), (10, 2, 65))
    assert piece["pitch"][skyline(piece)].tolist() == [72, 60, 65]
    assert piece["pitch"][bass_line(piece)].tolist() == [48, 60]


def test_measures_of_a_melody_by_hand():
    # Bar 1: C, an off-beat E over beat 3, G; bar 2: C alone.
    found = listening_measures(piano((0, 4, 72), (6, 6, 76), (12, 4, 79), (16, 16, 72)), [])
    assert found["notes_per_bar"] == found["melody_notes_per_bar"] == 2
    assert found["melody_range"] == 7
    assert found["melody_motion"] == pytest.approx((4 + 3 + 7) / 3)
    assert found["melody_syncopation"] == 1 / 4
    assert found["melody_rhythms"] == 1
    assert np.isnan(found["motif_return_8"])
    assert np.isnan(found["chord_tone_share"])


def test_a_note_on_the_next_beat_or_a_rest_before_it_is_no_syncopation():
    score = piano((2, 2, 72), (4, 4, 72), (10, 1, 72), (14, 4, 72))
    assert listening_measures(score, [])["melody_syncopation"] == 1 / 4  # the last, over the bar


def test_motifs_that_return_transposed_count_as_the_same():
    # Bars 1 and 9 are a motif and its transposition; those between, one other rhythm.
    motif = [(0, 72), (4, 74), (8, 79)]
    rows = [(onset, 2, pitch) for onset, pitch in motif]
    rows += [(16 * bar + 2, 2, 72) for bar in range(1, 8)]
    rows += [(16 * 8 + onset, 2, pitch + 3) for onset, pitch in motif]
    score = piano(*rows)
    melody = score.tracks[0].notes
    # Of 36 pairs of bars, the 21 among the seven and the pair of motifs are equal.
    assert motif_return(melody_motifs(score, melody), 8) == pytest.approx(1 - 22 / 36)
    assert motif_return(melody_motifs(score, melody), 7) == pytest.approx(0 - 22 / 36)
    assert np.isnan(motif_return(melody_motifs(score, melody), 9))


def test_similarity_of_bars_is_that_of_onset_and_contour():
    # A step up and a leap up: the first note is alike, the second is not.
    score = piano((0, 2, 72), (4, 2, 74), (16, 2, 72), (20, 2, 76), (32, 2, 60), (36, 2, 61))
    melody = score.tracks[0].notes
    # Pairs (1, 2), (2, 3): 1/2; (1, 3): 1.
    assert motif_return(melody_motifs(score, melody), 2) == pytest.approx(
        1 - (1 / 2 + 1 / 2 + 1) / 3
    )


def test_harmony_by_hand():
    # C with E and G in the middle, then F with F and A; the melody E, D off the chord, F, B.
    score = piano(
        *((0, 16, 48), (0, 16, 60), (0, 16, 64), (0, 8, 76), (8, 8, 74)),
        *((16, 16, 41), (16, 16, 60), (16, 16, 65), (16, 4, 77), (20, 12, 83)),
    )
    found = listening_measures(score, [ChordChange(0, C), ChordChange(BAR, F)])
    assert found["chord_tone_share"] == pytest.approx(2 / 3)  # B begins on a weak beat
    assert found["chord_fit"] == 1
    assert found["chords_per_bar"] == 1
    assert found["voice_leading"] == pytest.approx(((0 + 1) / 2 + (0 + 1) / 2) / 2)
    assert found["bass_motion"] == 7
    # Notes before the first chord and under no chord are left out.
    later = [ChordChange(BAR, frozenset())]
    assert np.isnan(listening_measures(score, later)["chord_tone_share"])


def test_strong_beats_follow_the_metre():
    score = piano(*((4 * beat, 4, 72 if beat % 3 == 0 else 73) for beat in range(6)))
    assert listening_measures(score, [ChordChange(0, C)])["chord_tone_share"] < 1
    score.time_signatures = [TimeSignature(0, 3, 4)]
    assert listening_measures(score, [ChordChange(0, C)])["chord_tone_share"] == 1
    score.time_signatures = [TimeSignature(0, 6, 8)]
    six_eight = listening_measures(score, [ChordChange(0, C)])
    assert six_eight["chord_tone_share"] == 1  # a beat of three eighths is no quarter: beat 1 only


@pytest.mark.parametrize("score", [Score(), piano((0, 4, 36), is_drum=True)])
def test_measures_without_pitched_notes_are_undefined(score):
    found = listening_measures(score, [ChordChange(0, C)])
    assert {name for name, value in found.items() if not np.isnan(value)} <= {"chords_per_bar"}


def test_chord_changes_are_the_same_in_every_key():
    g = frozenset({7, 11, 2})
    song = [ChordChange(0, C), ChordChange(BAR, F), ChordChange(2 * BAR, frozenset())]
    steps = chord_steps(song)
    assert len(steps) == 1
    # G to C is what C to F is; F to C is another change.
    assert known_step_share([ChordChange(0, g), ChordChange(1, C), ChordChange(2, F)], steps) == 1
    assert known_step_share([ChordChange(0, C), ChordChange(1, F), ChordChange(2, C)], steps) == 0.5
    assert np.isnan(known_step_share(song[:1], steps))
