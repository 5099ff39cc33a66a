import numpy as np
import pytest

from musicgen.midi import Score, TimeSignature, Track, notes_from
from musicgen.tokenization import REMI
from musicgen.tokenization.base import Losses
from musicgen.tokenization.remi.metre import Metres

LATE = "within a bar read from the next bar on"


def signatures(*rows):
    return [TimeSignature(tick, *map(int, name.split("/"))) for tick, name in rows]


def test_bars_of_a_piece_that_changes_metre(names):
    remi = REMI(time_signatures=("4/4", "3/4", "6/8"))
    assert remi.vocabulary.tokens[:4] == ("Bar_4/4", "Bar_3/4", "Bar_6/8", "EOS")
    # 2 ticks a beat: a bar of 4/4 from 0, two of 3/4 from 8, one of 6/8 from 20.
    score = Score(
        2,
        [Track("Piano", notes=notes_from([(0, 2, 60, 60), (13, 2, 62, 60), (25, 2, 64, 60)]))],
        time_signatures=signatures((8, "3/4"), (20, "6/8")),
    )
    tokens, summary = remi.encode_with_summary(score)
    assert names(remi, tokens) == (
        "Bar_4/4 Beat_0 Pitch_60 Velocity_60 Duration_4 Bar_3/4 Beat_10 Pitch_62 Velocity_60"
        " Duration_4 Bar_3/4 Bar_6/8 Beat_10 Pitch_64 Velocity_60 Duration_4 EOS"
    )
    assert not [rule for rule in summary.rules if "chord" not in rule]
    times = [0, 0, 0, 0, 0, 16, 26, 26, 26, 26, 28, 40, 50, 50, 50, 50, 50]
    assert remi.times(tokens).tolist() == times
    assert remi.bar_starts(tokens, 16).tolist() == [0, 16, 28, 40]
    assert remi.bar_starts(tokens[-1:], 16).tolist() == [0]
    decoded = remi.decode(tokens)
    assert decoded.time_signatures == signatures((16 * 120, "3/4"), (40 * 120, "6/8"))
    assert decoded.bar_starts().tolist()[:4] == [0, 16 * 120, 28 * 120, 40 * 120]
    # Tokens cut at any bar are complete and in the right metre.
    assert remi.decode(tokens[5:]).time_signatures == signatures((0, "3/4"), (24 * 120, "6/8"))


def test_a_single_metre_applies_to_all_bars(names):
    waltz = REMI(time_signatures=("3/4",))
    score = Score(1, [Track(notes=notes_from([(7, 1, 60, 60)]))], time_signatures=[])
    for rows in ([], [(0, "3/4")], [(0, "6/8")]):
        score.time_signatures = signatures(*rows)
        tokens, summary = waltz.encode_with_summary(score)
        assert names(waltz, tokens).startswith("Bar Bar Bar Beat_4 Pitch_60")
        assert summary.rules == ["no chord markers: no Chord tokens"]
        assert waltz.decode(tokens).time_signatures == signatures((0, "3/4"))
        assert waltz.bar_length(score) == 12
    score.time_signatures = signatures((0, "4/4"), (5, "7/8"), (9, "4/4"))
    assert waltz.encode_with_summary(score)[1].rules[:2] == ["4/4 read as 3/4", "7/8 read as 3/4"]


@pytest.mark.parametrize(
    ("rows", "metres", "rules"),
    [
        ([], "4/4 4/4 4/4 4/4", []),  # the default of MIDI files
        ([(0, "3/4")], "3/4 3/4 3/4 3/4", []),
        ([(0, "6/8"), (0, "3/4")], "3/4 3/4 3/4 3/4", []),  # the last of several at one tick
        ([(0, "12/16")], "3/4 3/4 3/4 3/4", []),  # bars of equal length
        ([(0, "7/8")], "5/4 5/4 5/4 5/4", ["7/8 read as 5/4"]),
        ([(5, "3/4")], "4/4 4/4 3/4 3/4", [f"3/4 {LATE}"]),
        ([(5, "3/4"), (6, "4/4")], "4/4 4/4 4/4 4/4", [f"3/4 {LATE}", f"4/4 {LATE}"]),
        ([(0, "4/4"), (1, "4/4")], "4/4 4/4 4/4 4/4", [f"4/4 {LATE}"]),  # after an upbeat
        ([(8, "3/4"), (11, "5/4")], "4/4 4/4 3/4 5/4", []),
        ([(16, "3/4"), (10**9, "5/4")], "4/4 4/4 4/4 4/4", []),
    ],
)
def test_the_bar_from_which_a_metre_applies(rows, metres, rules):
    own = Metres(["5/4", "4/4", "3/4"], steps_per_beat=4)
    assert own.lengths.tolist() == [20, 16, 12]
    score = Score(1, time_signatures=signatures(*rows))
    losses = Losses(score, 4)
    starts, indices = own.bars(4, losses)
    assert " ".join(own.names[i] for i in indices) == metres
    assert np.array_equal(np.diff(starts), own.lengths[indices])
    assert starts[0] == 0
    assert [rule for rule in losses.summary().rules if "chord" not in rule] == rules
