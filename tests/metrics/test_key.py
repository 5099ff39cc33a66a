"""Descriptors of pitch against muspy's."""

from __future__ import annotations

import math

import muspy
import numpy as np
import pytest

from musicgen.metrics.key import find_scale, in_scale_share, pitch_class_entropy
from musicgen.midi import Score, Track, notes_from

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
    assert in_scale_share(score, root) == pytest.approx(muspy.scale_consistency(music))
    for other in range(12):
        expected = muspy.pitch_in_scale_rate(music, other, "major")
        assert in_scale_share(score, other) == pytest.approx(expected)
    assert pitch_class_entropy(score) == pytest.approx(muspy.pitch_class_entropy(music))


def test_drums_have_no_scale():
    score, _ = piece([], drums=[36, 38])
    assert math.isnan(in_scale_share(score, 0))
    assert math.isnan(pitch_class_entropy(score))


def test_the_scale_of_d_major():
    assert find_scale(piece([62, 64, 66, 67, 69, 71, 73])[0]) == 2
