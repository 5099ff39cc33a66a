"""Measures of ends: hand-made cadences."""

from functools import partial

import numpy as np
import pytest

from musicgen.metrics.cadences import (
    answer_share,
    ending,
    ending_measures,
    half_cadence_share,
    harmonies,
    phrase_start,
)
from musicgen.metrics.melody import leading_part
from musicgen.metrics.repeated_bars import bar_notes
from musicgen.midi import TimeSignature
from musicgen.midi.key import Key
from tests.metrics import builders
from tests.metrics.builders import four_parts

C_MAJOR, C_MINOR = Key(0, True), Key(0, False)
C, F, G, G7 = (72, 67, 64, 48), (72, 69, 65, 53), (71, 67, 62, 43), (71, 65, 62, 43)
C_MINOR_CHORD, A_MINOR, B_DIMINISHED = (72, 67, 63, 48), (72, 69, 64, 45), (74, 71, 65, 50)
DIMINISHED_SEVENTH, OCTAVE = (74, 68, 65, 59), (72, 60, 48, 36)

tune = partial(builders.piano, step=480)  # rows of quarters


def degrees(*chords, key=C_MAJOR, beats=None):
    return [chord.degree(key) for chord in harmonies(four_parts(*chords, beats=beats), key)]


@pytest.mark.parametrize(
    ("chords", "key", "expected"),
    [
        ((C, F, G, C), C_MAJOR, ["I", "IV", "V", "I"]),
        ((F, G, G7, OCTAVE), C_MAJOR, ["IV", "V", "I"]),
        ((F, G7, A_MINOR), C_MAJOR, ["IV", "V", "vi"]),
        ((F, C), C_MAJOR, ["IV", "I"]),
        (((77, 65, 53, 41), C), C_MAJOR, ["IV", "I"]),  # one tone of a triad
        (((74, 65, 62, 50), C), C_MAJOR, ["ii", "I"]),
        ((G7, C_MINOR_CHORD), C_MINOR, ["V", "i"]),
        ((G7, C), C_MINOR, ["V", "I"]),
        ((B_DIMINISHED, C), C_MAJOR, ["vii", "I"]),
        ((DIMINISHED_SEVENTH, C_MINOR_CHORD), C_MINOR, ["vii", "i"]),
        ((C, F), Key(5, True), ["V", "I"]),
    ],
)
def test_harmonies(chords, key, expected):
    assert degrees(*chords, key=key) == expected


def test_harmonies_of_broken_chords():
    # One bar of C, one of G7 and one of C, eighth by eighth.
    pitches = [48, 55, 64, 55] * 2 + [43, 53, 59, 62] * 2 + [48, 55, 64, 60] * 2
    score = tune(*((i / 2, 0.5, pitch) for i, pitch in enumerate(pitches)))
    found = harmonies(score, C_MAJOR)
    assert [chord.degree(C_MAJOR) for chord in found] == ["I", "V", "I"]
    assert [chord.tick for chord in found] == [0, 4 * 480, 8 * 480]


def test_beats_of_less_than_a_tick():
    score = builders.piano((0, 2, 48), (0, 2, 64), (0, 2, 67), tpb=1)
    score.time_signatures = [TimeSignature(0, 5, 8)]
    assert [chord.degree(C_MAJOR) for chord in harmonies(score, C_MAJOR)] == ["I"]


def test_rests_are_no_harmonies():
    assert degrees(G, (None,) * 4, C, beats=[1, 2, 1]) == ["V", "I"]
    assert harmonies(tune(), C_MAJOR) == []


def test_an_ending():
    score = four_parts(F, G7, C, beats=[1, 1, 2])
    found = ending(score, C_MAJOR)
    assert found == (("V", "I"), 2, "1", 1)
    assert found.is_dominant_tonic
    # The leading part repeats its last note: it got there by the step before.
    score = four_parts((74, 67, 62, 43), (72, 67, 60, 52), C)
    assert ending(score, C_MAJOR)[2:] == ("1", -2)
    measures = ending_measures(score, C_MAJOR)
    assert np.isnan(measures.pop("picardy"))
    assert measures == {
        "dominant_tonic": 1,
        "tonic_harmony": 1,
        "tonic_on_top": 1,
        "ends_by_step": 1,
        "last_note": 1,
    }
    plagal = ending_measures(four_parts(F, (76, 67, 64, 48)), C_MAJOR)
    assert [*plagal.values()][:-1] == [0, 1, 0, 0, 1]
    in_minor = [(G7, (72, 67, third, 48)) for third in (63, 64)]
    found = [ending_measures(four_parts(*each), C_MINOR)["picardy"] for each in in_minor]
    assert found == [0, 1]
    assert np.isnan(ending_measures(four_parts(G7), C_MINOR)["picardy"])
    assert np.isnan([*ending_measures(score, None).values()]).all()


def test_the_last_note_is_the_longest_of_those_that_begin_last():
    score = tune((0, 1, 60), (1, 3, 48), (1, 0.5, 64))
    assert ending(score, C_MAJOR).last_length == 3


def test_phrases_begin_behind_a_pickup():
    assert phrase_start(tune((3, 1, 60), (4, 1, 62))) == 1
    assert phrase_start(tune((0, 1, 60))) == 0
    assert phrase_start(tune((1, 1, 60))) == 0  # a rest on the first beat
    assert phrase_start(tune((7, 1, 60), (8, 1, 60))) == 2


def half(score, key=C_MAJOR, phrase=4, first=0):
    return half_cadence_share(score, key, leading_part(score), phrase, first)


def bars_of(*last, bars=4):
    """Bars of quarters on C, with other notes in the last one."""
    rows = [(4 * (bars - 1) + onset, length, pitch) for onset, length, pitch in last]
    return tune(*((i, 1, 72) for i in range(4 * (bars - 1))), *rows)


def test_half_cadences_rest_on_the_dominant():
    chord = [(0, 4, 43), (0, 4, 59)]
    assert half(bars_of((0, 2, 74), *chord)) == 1
    assert half(bars_of((0, 3, 74), (3, 1, 67), *chord)) == 1  # a pickup to the next phrase
    assert half(bars_of((0, 1, 74), (1, 1, 72), (2, 1, 71), (3, 1, 69), *chord)) == 0
    assert half(bars_of((0, 4, 72), (0, 4, 48), (0, 4, 64))) == 0  # the tonic
    assert half(bars_of((0, 4, 74), (0, 4, 43), (0, 4, 58)), C_MINOR) == 0  # G minor
    # The last bar is the eighth of the piece, and no phrase of eight ends before.
    assert half(bars_of((0, 2, 74), *chord), phrase=8, first=4) == 1
    assert np.isnan(half(bars_of((0, 2, 74), *chord), phrase=8))
    score = bars_of((0, 2, 74), (0, 3, 43), (0, 3, 59))
    score.time_signatures = [TimeSignature(0, 4, 4)]
    assert half(score) == 1


def answers(*bars, phrase=4, first=0):
    """Each bar is a quarter or several, by pitch."""
    rows = [(4 * i + j, 1, pitch) for i, bar in enumerate(bars) for j, pitch in enumerate(bar)]
    return answer_share(bar_notes(tune(*rows)), len(bars), phrase, first)


def test_an_answer_begins_alike_and_ends_differently():
    a, b, c, d, e = (60, 62), (64, 65), (67, 69), (71, 74), (71, 72)
    assert answers(a, b, c, d, a, b, c, e) == 1
    assert answers(a, b, c, d, a, b, c, d) == 0  # the same again
    assert answers(a, b, c, d, c, e, a, b) == 0
    both = (a, b, c, d, a, b, c, e, *[d] * 4, *[c] * 4)
    assert answers(*both) == 1 / 2
    assert answers(*both, first=8) == 0  # only the second pair counts
    assert answers(*both, first=4) == 1 / 2
    assert answers(*(a, b, c, d) * 3, a, b, c, e, phrase=8) == 1
    assert np.isnan(answers(a, b, c, d, a, b, c))
