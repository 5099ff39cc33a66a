"""Beats of a performance have sixteenths, or thirds where these are more than twice as near."""

import pytest

from musicgen.midi import Score, Track, notes_from
from musicgen.tokenization.quantization import printed_rhythm


@pytest.mark.parametrize(
    ("onset", "expected"),
    [
        (127, 120),
        (143, 120),  # 23 from a sixteenth, 17 from a third
        (146, 120),  # 26 and 14: not twice as near
        (147, 160),  # 27 and 13
        (153, 160),
        (233, 240),
        (333, 320),  # 27 and 13
        (334, 360),  # 26 and 14
    ],
)
def test_a_beat_has_thirds_only_where_they_are_twice_as_near(onset, expected):
    rows = [(480 * beat + onset, 31, 60, 80) for beat in range(4)]
    score = printed_rhythm(Score(480, [Track(notes=notes_from(rows))]))
    assert score.notes["onset"].tolist() == [480 * beat + expected for beat in range(4)]
    assert score.repairs == ["played rhythm read as sixteenths and triplets"]


def test_the_sum_of_a_beat_decides_and_each_beat_for_itself():
    """Three onsets near thirds, one of which is nearer to a sixteenth; then a beat of sixteenths."""
    rows = [(at, 33, 60, 80) for at in (3, 155, 325, 480 + 3, 480 + 117, 480 + 363)]
    score = printed_rhythm(Score(480, [Track(notes=notes_from(rows))]))
    assert score.notes["onset"].tolist() == [0, 160, 320, 480, 600, 840]
