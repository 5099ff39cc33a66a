"""What the network reads, and how its odds become beats and bars: values computed by hand."""

import numpy as np
import pytest

from musicgen.plugins.beats.beat_map import TICKS_PER_BEAT, BeatMap
from musicgen.plugins.beats.beats import Beats
from musicgen.plugins.beats.network import (
    PlayedNotes,
    bar_odds,
    find_bars,
    find_beat_frames,
    frame_features,
    nearby_beat_odds,
)

METRES = (4, 3, 2)  # beats in a bar

# Seconds, length, pitch, velocity, whether it is a drum.
NOTES = [
    (0.5, 0.5, 40, 64, False),
    (0.5, 0.25, 52, 32, False),
    (0.5, 6.0, 72, 96, False),
    (1.0125, 0.5, 43, 64, False),  # between two frames
    (1.5, 0.5, 64, 64, False),
    (1.5, 0.1, 36, 64, True),
    (1.5, 0.1, 38, 64, True),
    (1.5, 0.1, 42, 64, True),
    (2.5, 0.5, 72, 64, False),
]
log = np.log1p
# By name of a column: its number, and values by frame.
FEATURES = {
    "notes": (0, {20: log(3), 40: log(0.5), 41: log(0.5), 60: log(4), 100: log(1), 99: 0}),
    "loudness": (1, {20: log(3), 40: log(0.5), 41: log(0.5), 60: log(4), 100: log(1)}),
    "low": (2, {20: log(1), 40: log(0.5), 60: 0, 100: 0}),
    "middle": (3, {20: log(0.5), 40: 0, 60: 0}),
    "high": (4, {20: log(1.5), 40: 0, 60: log(1), 100: log(1)}),
    "bass": (5, {20: 1, 40: 0.5, 41: 0.5, 60: 0, 100: 1}),
    "top": (6, {20: 1.5, 40: 0, 60: 1, 100: 1}),
    "length": (7, {20: log(2.75), 40: log(0.25), 60: log(0.5)}),
    "gap": (8, {20: 21 / 40, 30: 0, 41: 19 / 40, 60: 1, 100: 2}),
    "harmony of half a second": (9, {40: 1}),
    "harmony of a second": (10, {40: 0.537822}),
    "new bass": (11, {20: 1, 40: 0.5, 60: 0, 100: 1}),
    "harmony of two seconds": (12, {40: 0.185684}),
    "sounding": (13, {19: 0, 20: log(3), 30: log(2), 40: log(1), 41: log(2), 60: log(2)}),
    "bass drum": (14, {20: 0, 60: log(1)}),
    "snare": (15, {20: 0, 60: log(1)}),
    "cymbals": (16, {20: 0, 60: log(1)}),
}


@pytest.mark.parametrize("name", FEATURES)
def test_each_feature_of_a_frame(name):
    onset, duration, pitch, velocity, is_drum = map(np.array, zip(*NOTES, strict=True))
    found = frame_features(PlayedNotes(onset, duration, pitch, velocity.astype(float), is_drum))
    assert found.shape == (201, 17)  # half a second after the last note, whose length is limited
    column, expected = FEATURES[name]
    np.testing.assert_allclose(found[[*expected], column], [*expected.values()], atol=1e-5)


def test_odds_of_a_beat_add_up_its_nearby_frames():
    logits = np.full(12, -30.0, np.float32)
    logits[5] = 0
    least = np.log(0.003 / 0.997)
    expected = [least] * 3 + [np.log(1 / 3)] * 5 + [least] * 4
    np.testing.assert_allclose(nearby_beat_odds(logits), expected, rtol=1e-5)
    np.testing.assert_allclose(nearby_beat_odds(np.zeros(9, np.float32))[4], np.log(49))


def test_odds_of_a_bar_are_given_a_beat():
    logits = np.full((40, 2), -30.0, np.float32)
    logits[5] = 0, -np.log(3)  # a half and a quarter
    logits[13] = 0, np.log(97 / 3)  # a bar is more likely than a beat
    logits[22] = 0, -30
    last = 0.97 / 0.99
    expected = [0, np.log(last / (1 - last)), np.log(0.02 / 0.98)]
    for shift in (-2, 0, 2):
        found = bar_odds(logits, np.array([5, 13, 22]) + shift)
        np.testing.assert_allclose(found, expected, atol=1e-4)
    assert bar_odds(logits, np.array([8]))[0] < -3


@pytest.mark.parametrize("length", [2, 3, 4])
def test_bars_are_of_the_length_that_the_odds_say(length):
    odds = np.full(24, -3.0)
    odds[1::length] = 3
    best = find_bars(odds, METRES)[0]
    assert best.beats_per_bar == length
    assert best.starts.tolist() == [*range(1, 24, length)]


def test_a_bar_of_another_length_is_dear():
    for strength, expected in ((1.0, [0, 4, 8, 12, 16]), (4.0, [0, 4, 9, 13, 17])):
        odds = np.full(20, -strength)
        odds[[0, 4, 9, 13, 17]] = strength
        if strength == 1:
            odds[[12, 16]] = strength / 2
        assert find_bars(odds, METRES)[0].starts.tolist() == expected
    assert find_bars(np.zeros(12), METRES)[0].beats_per_bar == 4  # when unsure


def regular(every, num=10, first=8, level=3.0):
    logits = np.full(first + every * (num - 1) + 10, -6.0, np.float32)
    logits[first::every] = level
    return logits


@pytest.mark.parametrize("every", [24, 30])
def test_regular_beats_are_found_at_their_frames(every):
    logits = regular(every)
    last = 8 + 9 * every
    found = find_beat_frames(logits, 30, last - 20)
    assert found.tolist() == [*range(8, last + 1, every)]
    logits[8 + 4 * every] = -6  # a beat without a note
    assert len(find_beat_frames(logits, 30, last - 20)) == 10


def test_beats_reach_from_the_first_notes_to_the_last():
    logits = np.full(240, -6.0, np.float32)
    logits[80:140:20] = 3
    found = find_beat_frames(logits, 30, 200)
    assert found[0] <= 30
    assert found[-1] >= 200


def test_a_beat_is_at_the_peak_of_its_frames():
    logits = regular(24)
    for step, side in ((-1, 2.0), (1, 2.0)):
        logits[8 + step :: 24] = side
    assert find_beat_frames(logits, 30, 200)[1:-1].tolist() == [*range(32, 224, 24)]


# What the search finds today in random odds, where each of its costs decides.
RANDOM = {
    0: [2, 21, 39, 55, 72, 87, 102, 118, 135, 151, 168, 187, 211, 233],
    1: [0, 15, 32, 50, 69, 86, 103, 122, 143, 164, 182, 201, 219, 237],
    2: [4, 24, 41, 56, 72, 88, 104, 119, 134, 147, 159, 172, 185, 196, 208, 220, 233],
    3: [0, 27, 47, 65, 82, 97, 111, 124, 136, 150, 165, 178, 189, 199, 210, 223, 236],
    4: [
        1,
        13,
        24,
        35,
        48,
        61,
        72,
        83,
        94,
        104,
        114,
        123,
        132,
        141,
        151,
        162,
        174,
        187,
        202,
        219,
        236,
    ],
    5: [3, 23, 41, 58, 74, 91, 106, 119, 133, 147, 160, 171, 182, 195, 209, 223, 237],
}


@pytest.mark.parametrize("seed", range(6))
def test_beats_of_random_odds(seed):
    logits = np.random.default_rng(seed).normal(-1.5, 1.5, 240).astype(np.float32)
    assert find_beat_frames(logits, 30, 200).tolist() == RANDOM[seed]


def test_moments_between_beats_are_interpolated():
    beats = Beats(np.array([1.0, 1.5, 2.5, 3.0]), np.array([0]), (4, 4), "annotated")
    beat_map = BeatMap(beats, 1.0)
    moments = np.array([1.0, 1.25, 2.0, 2.5, 2.75, 3.5])
    quarters = np.array([0, 0.5, 1.5, 2, 2.5, 4])
    ticks = beat_map.ticks_at(moments)
    assert (ticks - ticks[0]).tolist() == (quarters * TICKS_PER_BEAT).tolist()
