"""Tunes alone, which are read as a part, and the chords that lead sheets print."""

from dataclasses import replace

import pytest

from musicgen.errors import UserError
from musicgen.midi import Score, Track, loads, notes_from, write
from tests.generation.builders import music_model
from tests.tokenizers import frozen_tokenizers

SONGS = frozen_tokenizers()["songs"]
TUNE = [(96 * i, 96, 60 + i % 5, 70) for i in range(9)]
BLOCKS = [(288 * i, 280, pitch, 50) for i in range(3) for pitch in (48, 52, 55)]


def tracks_of(*rows_of_tracks, names=("", "")):
    pairs = zip(names, rows_of_tracks, strict=False)
    return [Track(name, notes=notes_from(rows)) for name, rows in pairs]


@pytest.mark.parametrize(
    ("tracks", "read_as"),
    [
        (tracks_of(TUNE), "the tune read as Voice"),
        (tracks_of(TUNE, names=["Piano"]), "Piano read as Voice"),
        ([Track("Flute", 73, notes=notes_from(TUNE))], "Flute read as Voice"),
        (tracks_of(BLOCKS, TUNE, names=["Piano", "1"]), "1 read as Voice"),
        (tracks_of(BLOCKS, TUNE), "the tune read as Voice"),
        (tracks_of(TUNE, names=["Melody"]), ""),
    ],
)
def test_the_only_tune_is_read_as_the_voice_and_gets_a_piano(tracks, read_as):
    model, options = music_model(SONGS), {"keep": "voice", "seed": 1}
    (piece,) = model.generate(Score(96, tracks), **options)
    file = loads(piece.midi_file().data)
    kept = [track for track in file.tracks if track.notes.tolist() == TUNE]
    assert [track.name for track in kept] == [tracks[-1].name]
    assert [track.name for track in piece.new_score.tracks if len(track.notes)] == ["Piano"]
    assert piece.score.tracks[0].notes["pitch"].tolist() == [row[2] for row in TUNE]
    notice = f"prompt 0: all {len(TUNE)} notes kept, {read_as}" if read_as else ""
    assert piece.prompt.notice == notice
    named = [replace(t, name="Voice") if t.notes.tolist() == TUNE else t for t in tracks]
    (same,) = model.generate(Score(96, named), **options)
    assert piece.tokens.tolist() == same.tokens.tolist()


@pytest.mark.parametrize(
    ("tracks", "words"),
    [
        (tracks_of(BLOCKS), "expected some of its parts: piano; name the track of a tune Voice"),
        (tracks_of(TUNE, TUNE), "name the track of a tune Voice"),
        (tracks_of(TUNE, TUNE, names=["Piano", "Flute"]), "name the track of a tune Voice"),
    ],
    ids=["chords", "two tunes", "instruments"],
)
def test_without_one_tune_the_cure_is_named(tracks, words):
    with pytest.raises(UserError, match=words):
        music_model(SONGS).generate(Score(96, tracks), keep="voice")


@pytest.mark.parametrize(
    ("track", "part"),
    [
        (Track(notes=notes_from(TUNE)), "Voice"),
        (Track("Piano", notes=notes_from(TUNE)), "Piano"),
        (Track(program=40, notes=notes_from(TUNE)), "Strings"),
        (Track(notes=notes_from(BLOCKS)), "Piano"),
    ],
    ids=["tune", "named", "violin", "chords"],
)
def test_a_tune_alone_goes_on_as_a_voice_in_its_own_track(tmp_path, track, part):
    write(Score(96, [track]), tmp_path / "tune.mid")
    model = music_model(SONGS)
    model.model.head.bias.data[SONGS.vocabulary.id(f"Part_{part}")] = 99
    (piece,) = model.generate(tmp_path / "tune.mid", bars=2)
    assert [each.name for each in piece.prompt.score.tracks if len(each.notes)] == [part]
    for keep_prompt in "original", "tokens":
        (own,) = loads(piece.midi_file(keep_prompt).data).tracks
        is_violin = part == "Strings" and keep_prompt == "tokens"
        assert own.program == (48 if is_violin else track.program)
        assert len(own.notes) > len(track.notes)


ABC = """X:1
M:3/4
L:1/4
K:G
D | "G"G A B | "Am7/G"c2 A | "D7"F3 |]
"""


def test_the_chords_of_a_lead_sheet_are_those_that_are_written(tmp_path):
    (tmp_path / "tune.abc").write_text(ABC)
    model = music_model(SONGS, "auto")
    model.model.head.bias.data[SONGS.vocabulary.id("Part_Chords")] = 99
    (piece,) = model.generate(tmp_path / "tune.abc", keep="voice", seed=1)
    printed = [(3, "G_M"), (6, "A_m7"), (9, "D_7")]
    found = [(m.tick // 480, m.text) for m in piece.score.markers if m.tick >= 3 * 480]
    assert found == printed  # in the upbeat the model chooses
    file = loads(piece.midi_file().data)
    assert [m.text for m in file.markers] == ["G_M_G", "A_m7_G", "D_7_D"]
