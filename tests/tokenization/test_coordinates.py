"""Coordinates of tokens: values by hand, causality, and the same token by token."""

import numpy as np
import pytest

from musicgen.errors import ParameterError
from musicgen.tokenization import REMI, Chorale, Groove2Groove
from musicgen.tokenization.chords import CHORDS, NO_CHORD, ROOTS, chord_number
from musicgen.tokenization.coordinates import Coordinates, match_classes
from tests.tokenizers import frozen_tokenizers

NAMES = ("index", "time", "bar", "beat", "pitch", "chord")


def ids(tokenizer, names):
    return np.array([tokenizer.vocabulary.id(name) for name in names.split()])


def test_coordinates_of_remi_by_hand():
    remi = REMI(time_signatures=["4/4", "3/4", "7/8"])
    tokens = ids(
        remi,
        "Bar_3/4 Beat_2 Chord_C_M Pitch_60 Velocity_60 Duration_1 Beat_8 Pitch_67 Velocity_60 "
        "Duration_1 Bar_4/4 Bar_3/4 Beat_0 Chord_N_N Beat_1 Chord_G_7 Pitch_48",
    )
    c, g = 1 + 12 * 3 + 3, 1 + 12 * 2 + 4  # M and 7 are the fourth and third quality; a fifth apart
    assert Coordinates(remi).of(tokens, NAMES).T.tolist() == [
        list(range(17)),
        [0, 2, 2, 2, 2, 2, 8, 8, 8, 8, 12, 28, 28, 28, 29, 29, 29],
        [0] * 10 + [1] + [2] * 6,
        [0, 2, 2, 2, 2, 2, 8, 8, 8, 8, 0, 0, 0, 0, 1, 1, 1],
        [0] * 3 + [60] * 4 + [67] * 9 + [48],
        [0] * 2 + [c] * 11 + [0, 0, g, g],
    ]
    assert Coordinates(remi).of(tokens[:0], NAMES).shape == (0, 6)


def test_coordinates_of_groove2groove_by_hand():
    groove = Groove2Groove()
    tokens = ids(
        groove,
        "BOS NoteOn_Drums_36 NoteOn_Piano_60 TimeShift_1_0 NoteOff_Drums_36 NoteOn_Bass_40 "
        "TimeShift_2_0 NoteOff_Piano_60 NoteOff_Bass_40 NoteOn_Drums_38 TimeShift_1_3 "
        "NoteOff_Drums_38 EOS",
    )
    names = ("beat", "pitch", "bar", "time")
    time = [0, 0, 0, 12, 12, 12, 36, 36, 36, 36, 51, 51, 51]
    pitch = [0, 0, 60, 60, 60, *[40] * 8]  # drums have none
    assert Coordinates(groove).of(tokens, names, bar_length=36).tolist() == [
        [t % 36, p, t // 36, t] for t, p in zip(time, pitch, strict=True)
    ]
    assert Coordinates(groove).of(tokens, ["beat"])[:, 0].tolist() == [t % 48 for t in time]


def test_the_key_of_tokens_is_the_latest():
    songs = frozen_tokenizers()["songs"]
    tokens = ids(songs, "Bar_4/4 Key_-5 Tempo_95 Bar_4/4 Key_2 Part_Voice")
    assert Coordinates(songs).of(tokens, ["key"])[:, 0].tolist() == [0, 1, 1, 1, 8, 8]
    chorales = Chorale(keys=True)
    found = Coordinates(chorales).of(ids(chorales, "BOS Key_-5m Pitch_60 Silence"), ["key"])
    assert found[:, 0].tolist() == [0, 13, 13, 13]


def test_matches_see_no_velocity_and_no_tempo():
    tokenizer = REMI()
    classes = np.array(match_classes(tokenizer))
    assert len(classes) == len(tokenizer.vocabulary)
    families = tokenizer.families
    for name in ("Velocity", "Tempo"):
        assert (classes[families[name]] == families[name].start).all()
    others = np.delete(np.arange(len(classes)), [*families["Velocity"], *families["Tempo"]])
    assert (classes[others] == others).all()
    assert match_classes(Chorale()) == list(range(len(Chorale().vocabulary)))


def test_chord_numbers_tell_chords_and_fifths():
    numbers = [chord_number(i) for i in range(len(CHORDS))]
    assert sorted(numbers) == list(range(len(CHORDS)))
    assert numbers[NO_CHORD] == 0
    number = dict(zip(CHORDS, numbers, strict=True))
    for semitones in range(12):
        for root, name in enumerate(ROOTS):
            other = ROOTS[(root + semitones) % 12]
            lag = number[f"{other}_m7"] - number[f"{name}_m7"]
            assert (lag * 7 - semitones) % 12 == 0  # a fifth is 7 semitones
            assert (number[f"{other}_M"] - number[f"{name}_m7"] - lag) % 12 == 0


def test_coordinates_that_tokens_do_not_tell_are_refused():
    for name, tokenizer in frozen_tokenizers().items():
        Coordinates(tokenizer).check(NAMES[:5])
        if name in ("remi", "remi_fine", "remi_metres", "songs", "quartet"):
            Coordinates(tokenizer).check(NAMES)
            continue
        with pytest.raises(ParameterError, match="coordinates=chord: expected some of index, time"):
            Coordinates(tokenizer).check(["index", "chord"])
