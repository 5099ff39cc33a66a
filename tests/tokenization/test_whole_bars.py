import numpy as np
import pytest

from musicgen.midi import Score, TimeSignature, Track, notes_from
from musicgen.tokenization import REMI
from musicgen.tokenization.quantization import relocate
from musicgen.tokenization.whole_bars import without_long_gaps


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
    tokens, losses = remi.encode_with_report(score)
    assert names(remi, tokens) == (
        "Bar_4/4 Beat_0 Pitch_60 Velocity_60 Duration_4 Bar_3/4 Beat_10 Pitch_62 Velocity_60"
        " Duration_4 Bar_3/4 Bar_6/8 Beat_10 Pitch_64 Velocity_60 Duration_4 EOS"
    )
    assert not [rule for rule in losses.summary().rules if "chord" not in rule]
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
        tokens, losses = waltz.encode_with_report(score)
        assert names(waltz, tokens).startswith("Bar Bar Bar Beat_4 Pitch_60")
        assert losses.summary().rules == ["no chord markers: no Chord tokens"]
        assert waltz.decode(tokens).time_signatures == signatures((0, "3/4"))
        assert waltz.bar_length(score) == 12
    score.time_signatures = signatures((0, "4/4"), (6, "7/8"), (9, "4/4"))
    read = {f"{name} read as 3/4 (tokenizer=remi_metres has it)" for name in ("4/4", "7/8")}
    assert read < set(waltz.encode_with_report(score)[1].summary().rules)


FILLED = "incomplete bars filled with silence"


@pytest.mark.parametrize(
    ("rows", "metres", "steps", "rules"),
    [
        ([], "4/4 4/4 4/4 4/4", [0, 16, 32, 48], []),  # the default of MIDI files
        ([(0, "3/4")], "3/4 3/4 3/4 3/4", [0, 16, 32, 48], []),
        ([(0, "6/8"), (0, "3/4")], "3/4 3/4 3/4 3/4", [0, 16, 32, 48], []),  # the last at one tick
        ([(0, "12/16")], "3/4 3/4 3/4 3/4", [0, 16, 32, 48], []),  # bars of equal length
        ([(0, "13/8")], "5/4 5/4 5/4 5/4", [0, 16, 32, 48], ["13/8 read as 5/4"]),
        ([(5, "3/4")], "4/4 4/4 3/4 3/4", [0, 16, 44, 60], [FILLED]),  # bars at 0, 4 and 5
        ([(1, "3/4")], "3/4 3/4 3/4 3/4", [8, 24, 40, 56], [FILLED]),  # an upbeat
        ([(0, "1/4"), (1, "4/4")], "4/4 4/4 4/4 4/4", [12, 28, 44, 60], [FILLED]),
        ([(8, "3/4"), (11, "5/4")], "4/4 4/4 3/4 5/4", [0, 16, 32, 48], []),
        # Two bars of 2/4 before 4/4: the beginning has no metre of the vocabulary.
        ([(0, "2/4"), (6, "4/4")], "5/4 5/4 4/4 4/4", [16, 32, 48, 64], [FILLED, "2/4 read"]),
        ([(16, "3/4"), (10**9, "5/4")], "4/4 4/4 4/4 4/4", [0, 16, 32, 48], []),
    ],
)
def test_every_later_bar_line_of_tokens_is_the_pieces(rows, metres, steps, rules):
    own = REMI(time_signatures=["5/4", "4/4", "3/4"], max_bars=4, chords=False)
    assert own.signatures.lengths.tolist() == [20, 16, 12]
    score = Score(4, time_signatures=signatures(*((4 * tick, name) for tick, name in rows)))
    score.tracks = [Track(notes=notes_from([(16 * i, 1, 60, 60) for i in range(4)]))]
    losses = own.encode_with_report(score)[1]
    starts, indices = own.signatures.bars(4, losses)
    assert " ".join(own.signatures.names[i] for i in indices) == metres
    assert np.array_equal(np.diff(starts), own.signatures.lengths[indices])
    assert losses.grid(losses.score.notes["onset"]).tolist() == steps
    moved = relocate(score.notes["onset"], losses.tick_map)
    assert moved.tolist() == losses.score.notes["onset"].tolist()
    found = losses.summary().rules
    assert len(found) == len(rules)
    assert all(any(own.startswith(rule) for own in found) for rule in rules)


def test_long_silence_is_left_out():
    notes = notes_from([(0, 4, 60, 60), (16 * 65, 4, 62, 60), (16 * 1000 + 4, 4, 64, 60)])
    score = Score(4, [Track("Piano", notes=notes)])
    shorter, places = without_long_gaps(score)
    assert shorter.repairs == ["934 bars without a note left out"]
    assert shorter.notes["onset"].tolist() == [0, 16 * 65, 16 * 66 + 4]
    assert relocate(score.notes["onset"], places).tolist() == shorter.notes["onset"].tolist()
    assert without_long_gaps(shorter)[0].repairs == shorter.repairs
