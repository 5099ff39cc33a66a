"""The ends of pieces, as notes."""

from benchmarks.endings import ends_on_tonic
from benchmarks.measure import song_title
from benchmarks.ten_endings import end_of, note_name
from musicgen.midi import Score, TimeSignature, Track
from musicgen.midi.key import Key, spelling
from musicgen.midi.score import notes_from


def test_the_end_of_a_piece_as_notes():
    rows = [(12 * i, 12, pitch, 80) for i, pitch in enumerate((65, 63, 62, 60, 62, 59))]
    voice = notes_from([*rows, (72, 36, 60, 80)])
    dominant = [(48, 24, pitch, 80) for pitch in (43, 50, 53)]
    tonic = [(72, 24, pitch, 80) for pitch in (36, 51, 55)]
    before = [(0, 48, pitch, 80) for pitch in (41, 48, 56)]
    piano = notes_from([*before, *dominant, *tonic])
    score = Score(12, [Track("Voice", 52, False, voice), Track("Piano", 0, False, piano)])
    assert end_of(score, Key(0, major=False), score) == {
        "key": "C minor",
        "harmonies": ["G", "Cm"],
        "bass": ["G2", "C2"],
        "top": [["D4", 1.0], ["B3", 1.0], ["C4", 3.0]],
        "last note": 3.0,
        "dominant to tonic": True,
    }


def test_the_tonic_of_the_last_bar_alone_makes_an_end_on_the_tonic():
    def waltz(*pitches):
        rows = [(12 * i, 12, pitch, 80) for i, pitch in enumerate(pitches)]
        tracks = [Track("Piano", notes=notes_from(rows))]
        return Score(12, tracks, time_signatures=[TimeSignature(0, 3, 4)])

    in_c = Key(0, major=True)
    assert ends_on_tonic(waltz(67, 65, 62, 60, 67, 64), in_c)
    assert not ends_on_tonic(waltz(67, 62, 60, 67, 67, 64), in_c)


def test_notes_are_spelled_in_their_key():
    flat, sharp = spelling(-7), spelling(7)
    assert [note_name(x, flat) for x in (58, 59, 60)] == ["Bb3", "Cb4", "C4"]
    assert [note_name(x, sharp) for x in (60, 61)] == ["B#3", "C#4"]


def test_songs_are_named_by_composer_and_title():
    name = "scores/Hensel,_Fanny/6_Lieder,_Op.7/2_Erwin/lc5987806.mxl"
    assert song_title(name) == "Hensel: Erwin"
