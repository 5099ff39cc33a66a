"""Fields of ABC, and the order in which bars are played: values by hand."""

from fractions import Fraction

import pytest

from musicgen.plugins.scores.abc_fields import read_key, read_length, read_metre, read_tempo
from musicgen.plugins.scores.bars_and_repeats import (
    CODA,
    DA_CAPO,
    DAL_SEGNO,
    FINE,
    SEGNO,
    TO_CODA,
    Bar,
    PrintedKey,
    play_order,
)


@pytest.mark.parametrize(
    ("text", "bpm"),
    [
        ("120", 60),
        ("1/4=100", 100),
        ("3/8=60", 90),
        ("1/4 3/8=40", 100),
        ('"Allegro" 1/2=50 ', 100),
        ("C=80", 40),
        ("C3=60", 90),
        ("1/4=3", None),
        ("1/4=4", 4),
        ("1/2=600", None),
        ("1/0=90", None),
        ("fast", None),
    ],
)
def test_tempi(text, bpm):
    assert read_tempo(text, unit=Fraction(1, 2)) == bpm


@pytest.mark.parametrize(
    ("text", "key", "semitones"),
    [
        ("Bb", (-2, False), None),
        ("F#m", (3, True), None),
        ("Eb minor", (-6, True), None),
        ("D mix", (1, False), None),
        ("G dor", (-1, False), None),
        ("A aeolian", (0, True), None),
        ("E phr", (0, False), None),
        ("C lyd", (1, False), None),
        ("B loc", (0, False), None),
        ("HP", (2, False), None),
        ("none", (0, False), None),
        ("clef=bass", None, 0),
        ("C clef=treble-8", (0, False), -12),
        ("C treble+8", (0, False), 12),
        ("C octave=-1 transpose=-2", (0, False), -14),
        ("D exp ^f", (1, False), None),
    ],
)
def test_keys(text, key, semitones):
    found = read_key(text)
    assert (found[0], found[2]) == (key and PrintedKey(*key), semitones)


def test_signs_behind_a_key_alter_notes():
    assert read_key("D mix ^g")[1] == {"F": 1, "G": 1}
    assert read_key("G exp _b")[1] == {"B": -1}
    assert read_key("Eb __a =b")[1] == {"B": 0, "E": -1, "A": -2}


def test_metres_and_unit_lengths():
    assert [read_metre(text) for text in ("C", "C|", "6/8", "(2+3)/8", "0/4", "3/5", "none")] == [
        *((4, 4), (2, 2), (6, 8), (5, 8)),
        *(None,) * 3,
    ]
    assert [read_length(text) for text in ("1/8", "1", "0/8", "1/0")] == [
        *(Fraction(1, 2), Fraction(4)),
        *(None,) * 2,
    ]


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ({3: DA_CAPO}, [0, 1, 2, 3, 0, 1, 2, 3, 4, 5]),
        ({1: FINE, 3: DA_CAPO}, [0, 1, 2, 3, 0, 1]),
        ({1: SEGNO, 3: DAL_SEGNO}, [0, 1, 2, 3, 1, 2, 3, 4, 5]),
        ({3: DAL_SEGNO}, [0, 1, 2, 3, 4, 5]),
        ({1: TO_CODA, 3: DA_CAPO, 5: CODA}, [0, 1, 2, 3, 0, 1, 5]),
        ({0: SEGNO, 2: TO_CODA, 3: DAL_SEGNO, 4: CODA}, [0, 1, 2, 3, 0, 1, 2, 4, 5]),
        ({1: TO_CODA, 3: DA_CAPO}, [0, 1, 2, 3, 0, 1, 2, 3, 4, 5]),
        ({2: CODA, 3: DA_CAPO, 4: CODA}, [0, 1, 2, 3, 0, 1, 4, 5]),
        ({3: DA_CAPO, 4: CODA}, [0, 1, 2, 3, 0, 1, 2, 3, 4, 5]),
        ({0: TO_CODA, 2: CODA, 3: DA_CAPO, 4: CODA}, [0, 1, 2, 3, 0, 4, 5]),
    ],
)
def test_marks_lead_to_the_coda_and_to_the_end(marks, expected):
    bars = [Bar((4, 4), marks={marks[i]: ""} if i in marks else {}) for i in range(6)]
    assert [*play_order(bars)] == expected


def test_a_repeat_of_the_coda_is_played():
    bars = [Bar((4, 4)) for _ in range(4)]
    bars[0].marks, bars[1].marks, bars[2].marks = {TO_CODA: ""}, {DA_CAPO: ""}, {CODA: ""}
    bars[3].times = 2
    bars[2].opens = True
    assert [*play_order(bars)] == [0, 1, 0, 2, 3, 2, 3]


def test_after_a_jump_no_repeat_is_played_and_the_last_ending():
    bars = [Bar((4, 4)) for _ in range(4)]
    bars[1].endings, bars[1].times = frozenset({1}), 2
    bars[2].endings, bars[3].marks = frozenset({2}), {DA_CAPO: ""}
    assert [*play_order(bars)] == [0, 1, 0, 2, 3, 0, 2, 3]
