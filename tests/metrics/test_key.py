"""Keys against music21's, scales and entropy against muspy's."""

from __future__ import annotations

import math

import muspy
import numpy as np
import pytest

from musicgen.composer import compose_pop
from musicgen.metrics.key import Key, find_key, find_scale, in_key_share
from musicgen.midi import Score, Track, notes_from, pitched_notes

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
    root = find_scale(score)
    assert in_key_share(score, Key(root, True)) == pytest.approx(muspy.scale_consistency(music))
    for other in range(12):
        expected = muspy.pitch_in_scale_rate(music, other, "major")
        assert in_key_share(score, Key(other, True)) == pytest.approx(expected)


def test_drums_have_no_scale():
    score, _ = piece([], drums=[36, 38])
    assert math.isnan(in_key_share(score, Key(0, True)))


def test_the_scale_of_d_major():
    assert find_scale(piece([62, 64, 66, 67, 69, 71, 73])[0]) == 2


@pytest.mark.parametrize("tonic", range(12))
@pytest.mark.parametrize("major", [True, False])
def test_keys_of_scales_with_their_chords(tonic, major):
    # A scale whose tonic triad sounds three times.
    scale = [0, 2, 4, 5, 7, 9, 11] if major else [0, 2, 3, 5, 7, 8, 10]
    notes = [*scale, *2 * [scale[0], scale[2], scale[4]]]
    score, _ = piece([48 + tonic + step for step in notes])
    key = find_key(pitched_notes(score))
    assert key == (tonic, major)
    assert in_key_share(score, key) == 1
    # Of the five other pitch classes, none is in the key.
    assert in_key_share(piece(range(60, 72))[0], key) == pytest.approx(7 / 12)


def test_undefined_keys():
    drums, _ = piece([], drums=[36, 38])
    assert find_key(pitched_notes(drums)) is None
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
    tonic, mode = key.name.split()
    classes = dict(zip("CDEFGAB", (0, 2, 4, 5, 7, 9, 11), strict=True))
    assert classes[tonic[0]] + tonic.count("♯") - tonic.count("♭") == key.tonic
    assert (key.tonic, mode) == (expected.tonic.pitchClass, expected.mode)


def test_a_scale_has_a_letter_for_each_degree():
    """As it is written in every key, with at most one accidental a note."""
    for key in (Key(tonic, major) for tonic in range(12) for major in (True, False)):
        letters = [key.note_names[pitch_class][0] for pitch_class in key.scale]
        start = "CDEFGAB".index(key.name[0])
        assert letters == [*"CDEFGABCDEFGAB"[start : start + 7]]
        assert len({*key.note_names}) == 12
        for pitch_class, name in enumerate(key.note_names):
            sign = name.count("#") - name.count("b")
            assert ("C D EF G A B".index(name[0]) + sign) % 12 == pitch_class
    assert Key(10, False).note_names[10] == "Bb"
    assert Key(4, True).note_names[10] == "A#"
