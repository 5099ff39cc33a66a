"""Keys against music21's, scales and entropy against muspy's."""

import math

import muspy
import numpy as np
import pytest

from musicgen.composer import compose_pop
from musicgen.midi import Score, Track, notes_from, pitched_notes
from musicgen.midi.key import Key, find_key, in_key_share, key_fifths, spelling

RANDOM = np.random.default_rng(0).integers(21, 109, (5, 40)).tolist()


def piece(pitches, drums=()):
    """A score, and the same as muspy's music."""
    rows = [(100 * i, 90, pitch, 64) for i, pitch in enumerate(pitches)]
    hits = [(50 * i, 90, pitch, 64) for i, pitch in enumerate(drums)]
    score = Score(480, [Track(notes=notes_from(rows)), Track("", 0, True, notes_from(hits))])
    notes = [muspy.Note(onset, pitch, length) for onset, length, pitch, _ in rows]
    return score, muspy.Music(tracks=[muspy.Track(notes=notes)])


@pytest.mark.parametrize("pitches", [*RANDOM, [60], [62, 66, 69, 73]])
def test_descriptors_equal_those_of_muspy(pitches):
    score, music = piece(pitches, drums=[35, 36, 37])
    highest = max(in_key_share(score, Key(root, True)) for root in range(12))
    assert highest == pytest.approx(muspy.scale_consistency(music))
    for other in range(12):
        for major, mode in ((True, "major"), (False, "minor")):
            expected = muspy.pitch_in_scale_rate(music, other, mode)
            assert in_key_share(score, Key(other, major)) == pytest.approx(expected)


def test_every_signature_has_two_keys():
    major = ["Cb", "Gb", "Db", "Ab", "Eb", "Bb", "F", "C", "G", "D", "A", "E", "B", "F#", "C#"]
    minor = ["Ab", "Eb", "Bb", "F", "C", "G", "D", "A", "E", "B", "F#", "C#", "G#", "D#", "A#"]
    assert [*map(key_fifths, major)] == [*range(-7, 8)] == [key_fifths(f"{x}m") for x in minor]


def test_undefined_keys():
    drums, _ = piece([], drums=[36, 38])
    assert find_key(pitched_notes(drums)) is None
    assert math.isnan(in_key_share(drums, Key(0, True)))
    assert math.isnan(in_key_share(piece([60])[0], None))
    assert math.isnan(in_key_share(Score(), Key(0, True)))


@pytest.mark.parametrize("shift", range(12))
def test_keys_agree_with_music21(shift):
    from music21 import note, stream

    (track,) = compose_pop(seed=5, index=shift).tracks
    notes = track.notes[:60].copy()
    notes["pitch"] += shift
    part = stream.Stream()
    for row in notes:
        part.insert(
            row["onset"] / 480, note.Note(int(row["pitch"]), quarterLength=row["duration"] / 480)
        )
    expected = part.analyze("key.krumhansl")
    key = find_key(notes)
    assert key == (expected.tonic.pitchClass, expected.mode == "major")


def test_a_scale_has_a_letter_for_each_degree():
    """As it is written in every key, with at most one accidental a note."""
    for key in (Key(tonic, major) for tonic in range(12) for major in (True, False)):
        names = spelling(key.fifths)
        letters = [names[pitch_class][0] for pitch_class in key.scale]
        start = "CDEFGAB".index(names[key.tonic][0])
        assert letters == [*"CDEFGABCDEFGAB"[start : start + 7]]
        assert len({*names}) == 12
        for pitch_class, name in enumerate(names):
            sign = name.count("#") - name.count("b")
            assert ("C D EF G A B".index(name[0]) + sign) % 12 == pitch_class
    assert spelling(Key(10, False).fifths)[10] == "Bb"
    assert spelling(Key(4, True).fifths)[10] == "A#"
    assert [spelling(4)[each] for each in (0, 5)] == ["C", "F"]  # not B# and E#
    assert [spelling(-5)[each] for each in (4, 11)] == ["E", "B"]
    assert [spelling(7)[0], spelling(-7)[4]] == ["B#", "Fb"]  # which these keys have
