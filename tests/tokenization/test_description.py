from pathlib import Path

import numpy as np
import pytest

from musicgen.errors import UserError
from musicgen.midi import TEMPO, Marker, Score, TimeSignature, Track, notes_from, write
from musicgen.tokenization import REMI
from musicgen.tokenization.__main__ import describe_file

SCORE = Score(
    12,
    [
        Track("Bass", 33, notes=notes_from([(3, 20, 40, 64), (150, 6, 61, 64), (150, 6, 64, 64)])),
        Track("Drums", is_drum=True, notes=notes_from([(0, 3, 36, 64)])),
    ],
    np.array([(0, 119.0)], TEMPO),
    [TimeSignature(0, 3, 4)],
    [Marker(0, "Bb_m7"), Marker(36, "N_N_N")],
)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("my music") / "Señor, (a & b) = 1.mid"
    write(SCORE, path)
    return str(path)


def test_description_of_remi(file):
    head, *lines = describe_file(file)
    assert head == (
        "Señor, (a & b) = 1.mid: 21 tokens of remi; 1 note of drums dropped, 3/4 read as 4/4"
    )
    assert lines == [
        " bar beat",
        "   1 1         A# m7  119 bpm",
        "   1 1+1/4     E2 64 1+5/8",
        "   1 4         no chord",
        "   4 1+1/2     C#4 64 1/2  E4 64 1/2  EOS",
    ]
    _, _, *lines = describe_file(file, "remi_metres")
    assert lines == [
        "   1 1         3/4  A# m7  119 bpm",
        "   1 1+1/4     E2 64 1+5/8",
        "   2 1         no chord",
        "   5 1+1/2     C#4 64 1/2  E4 64 1/2  EOS",
    ]


def test_description_of_groove_and_of_a_saved_tokenizer(file, tmp_path):
    assert list(describe_file(file, "groove2groove")) == [
        "Señor, (a & b) = 1.mid: 19 tokens of groove2groove; all 4 notes kept",
        " bar beat",
        "   1 1         BOS  Drums 36 on",
        "   1 1+1/4     Drums 36 off  Bass E2 on",
        "   1 2+11/12   Bass E2 off",
        "   5 1+1/2     Bass C#4 E4 on",
        "   5 2         Bass C#4 E4 off  EOS",
    ]
    path = tmp_path / "mine.json"
    REMI(chords=False, velocity_bins=(64, 64, 1)).save(path)
    assert list(describe_file(file, str(path)))[2] == "   1 1         119 bpm"


@pytest.mark.parametrize(
    ("path", "tokenizer", "message"),
    [
        ("no such, file.mid", "remi", r"no such, file\.mid: cannot be read .*; give a MIDI file"),
        (str(ROOT), "remi", "cannot be read"),
        (__file__, "remi", "not a MIDI file"),
        ("a.mid", "bach", "tokenizer=bach: expected one of chorale, .*groove2groove"),
        ("a.mid", "bach.json", r"bach\.json: cannot be read"),
    ],
)
def test_errors_are_one_line(path, tokenizer, message):
    with pytest.raises(UserError, match=message) as caught:
        list(describe_file(path, tokenizer))
    assert "\n" not in str(caught.value)
