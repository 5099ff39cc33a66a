"""Style similarity against hand-computed cases and its definition in exact fractions."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from musicgen.metrics.style import (
    PROFILES,
    mean_similarity,
    role_similarities,
    style_profiles,
    style_similarity,
)
from musicgen.midi import Score, TimeSignature, Track, notes_from
from tests.metrics.builders import piano

TPB = 480


def cells(score: Score, profile: str) -> dict[tuple[int, int], float]:
    """Return the non-zero cells of the only role's histogram."""
    (histogram,) = style_profiles(score, profile).values()
    return {tuple(map(int, cell)): float(histogram[tuple(cell)]) for cell in np.argwhere(histogram)}


note_rows = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 60), st.integers(0, 127), st.integers(1, 127)),
    max_size=25,
)


@settings(max_examples=60)
@given(rows=note_rows, tpb=st.sampled_from([7, 12, 24, 25]))
def test_profiles_match_their_definitions(rows, tpb):
    onset_duration, time_pitch = np.zeros((24, 12)), np.zeros((24, 41))
    for i, (onset, duration, pitch, _) in enumerate(rows):
        start, length = Fraction(onset, tpb), Fraction(duration, tpb)
        if length <= 2:
            onset_duration[int(start % 4 * 6), min(int(length * 6), 11)] += 1
        for j, other in enumerate(rows):
            lag, interval = Fraction(other[0] - onset, tpb), other[2] - pitch
            if i != j and 0 <= lag < 4 and abs(interval) <= 20:
                time_pitch[int(lag * 6), interval + 20] += 1
    for profile, expected in ("onset_duration", onset_duration), ("time_pitch", time_pitch):
        got = style_profiles(piano(*rows, tpb=tpb), profile)["Piano"]
        np.testing.assert_allclose(got, expected / max(1, expected.sum()), atol=1e-12)


def test_velocity_and_drum_profiles():
    drums = piano((0, 9, 36, 15), (TPB, 9, 38, 16), (TPB, 9, 38, 127), is_drum=True)
    third = pytest.approx(1 / 3)
    assert cells(drums, "onset_velocity") == {(0, 0): third, (6, 1): third, (6, 7): third}
    assert cells(drums, "onset_drum") == {(0, 36): third, (6, 38): pytest.approx(2 / 3)}
    assert not style_profiles(piano((0, 9, 60, 64)), "onset_velocity")["Piano"].any()  # no accents


@pytest.mark.parametrize(
    ("numerator", "denominator", "onset_beats", "expected_beat"),
    [(3, 4, 3, 0), (3, 4, 5, 2), (6, 8, 4, 1), (5, 4, 4, 0), (5, 4, 5, 0), (4, 4, 9, 1)],
)
def test_bars_follow_the_time_signature(numerator, denominator, onset_beats, expected_beat):
    score = piano((onset_beats * TPB, 9, 60))
    score.time_signatures = [TimeSignature(0, numerator, denominator)]
    assert cells(score, "onset_duration") == {(6 * expected_beat, 0): 1.0}


def test_roles_without_notes_in_one_of_the_pieces_do_not_count():
    a = piano((0, TPB, 60))
    a.tracks += [Track("", 33, notes=notes_from([(0, 9, 40, 64)])), Track("", 40)]
    b = piano((0, TPB, 60))
    b.tracks += [Track("", 39, notes=notes_from([(TPB, 9, 40, 64)])), Track("", 60)]
    similarities = role_similarities(style_profiles(a), style_profiles(b))
    assert similarities["Piano"] == pytest.approx(1.0)
    assert similarities["Bass"] == 0.0
    assert np.isnan([similarities["Strings"], similarities["Brass"]]).all()
    assert style_similarity(a, b) == pytest.approx(0.5)


def test_tracks_match_by_role_and_never_by_name():
    a, b = piano((0, TPB, 60), name="BB Bass"), piano((0, TPB, 60), name="MELODY")
    b.tracks[0].program = 5  # an electric piano
    assert style_similarity(a, b) == pytest.approx(1.0)
    b.tracks[0].program = 32  # a bass
    assert np.isnan(style_similarity(a, b))


def test_pitched_profiles_exclude_drums_and_the_drum_profile_has_only_drums():
    score = piano((0, 9, 60))
    score.tracks += piano((0, 9, 36), name="Drums", is_drum=True).tracks
    names = {profile: set(style_profiles(score, profile)) for profile in PROFILES}
    assert names == {
        "onset_duration": {"Piano"},
        "time_pitch": {"Piano"},
        "onset_velocity": {"Piano", "Drums"},
        "onset_drum": {"Drums"},
    }


def chunks(music: Score, reference: Score, number: int) -> list[float]:
    target = style_profiles(reference)
    parts = [style_profiles(music, chunk=(k, number)) for k in range(number)]
    return [mean_similarity(part, target) for part in parts]


def test_chunks_are_half_open_and_keep_positions_in_the_bar():
    # Five beats, cut at 1¼, 2½ and 3¾: the chunks hold the beats 0-1, 2, 3 and 4.
    beats = piano(*((k * TPB, TPB, 60) for k in range(5)))
    reference = piano((3 * TPB, TPB, 60))
    assert chunks(beats, reference, 4) == pytest.approx([0, 0, 1, 0])
    # A note on a chunk's edge belongs to the later chunk.
    assert chunks(beats, reference, 5) == pytest.approx([0, 0, 0, 1, 0])


def test_chunk_edges_between_ticks():
    # 10 ticks in 4 chunks: tick 2 lies before the edge at 2.5.
    score = piano((0, 1, 60), (2, 8, 60), tpb=4)
    reference = piano((2, 8, 60), tpb=4)
    similarities = chunks(score, reference, 4)
    assert similarities[0] == pytest.approx(0.5**0.5)
    assert np.isnan(similarities[1:]).all()
