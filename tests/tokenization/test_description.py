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


def test_lines_of_bars_beats_and_tokens(tmp_path):
    file = str(tmp_path / "Señor, (a & b) = 1.mid")
    write(SCORE, file)
    head, *lines = describe_file(file, "remi_metres")
    assert head == "Señor, (a & b) = 1.mid: 22 tokens of remi_metres; 1 note of drums dropped"
    assert lines == [
        " bar beat",
        "   1 1        Bar_3/4 Beat_0 Chord_A#_m7 Tempo_119",
        "   1 1+1/4    Beat_1 Pitch_40 Velocity_64 Duration_6.5",
        "   2 1        Bar_3/4 Beat_0 Chord_N_N",
        *[f"   {bar} 1        Bar_3/4" for bar in (3, 4, 5)],
        "   5 1+1/2    Beat_2 Pitch_61 Velocity_64 Duration_2 Pitch_64 Velocity_64 Duration_2 EOS",
    ]
    assert next(describe_file(file)).endswith("of remi; 1 note of drums dropped, 3/4 read as 4/4")
    assert list(describe_file(file, "groove2groove"))[2:5] == [
        "   1 1        BOS NoteOn_Drums_36",
        "   1 1+1/4    TimeShift_0_3 NoteOff_Drums_36 NoteOn_Bass_40",
        "   1 2+11/12  TimeShift_1_11 NoteOff_Bass_40",
    ]
    path = tmp_path / "mine.json"
    REMI(chords=False, velocity_bins=(64, 64, 1)).save(path)
    assert list(describe_file(file, str(path)))[2] == "   1 1        Bar Beat_0 Tempo_119"


@pytest.mark.parametrize(
    ("path", "tokenizer", "message"),
    [
        ("no such, file.mid", "remi", r"no such, file\.mid: cannot be read .*; give a MIDI file"),
        ("a.mid", "bach", "tokenizer=bach: expected one of chorale, .*groove2groove"),
    ],
)
def test_errors_are_one_line(path, tokenizer, message):
    with pytest.raises(UserError, match=message) as caught:
        list(describe_file(path, tokenizer))
    assert "\n" not in str(caught.value)
