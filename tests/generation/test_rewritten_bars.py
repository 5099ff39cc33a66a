"""Where bars of a song that are rewritten end: its chords and its notes."""

from musicgen.midi import Marker, loads
from musicgen.midi import write as write_file
from tests.generation.builders import music_model
from tests.generation.test_keep import SONGS, accompanied, notes_between, write


def test_behind_bars_with_other_chords_the_chord_of_the_file_is_in_force(tmp_path):
    score = accompanied()
    score.markers = [Marker(0, "G_M"), Marker(400, "louder")]
    write_file(score, path := tmp_path / "song.mid")
    for bars, last in (("2", [(576, "G_M")]), ("2-4", [])):
        options = {"rewrite": bars, "chords": "Bb", "key": "F"}
        (piece,) = music_model(SONGS, "auto").generate(path, **options)
        assert piece.prompt.source.data == path.read_bytes()
        found = [(marker.tick, marker.text) for marker in loads(piece.midi_file().data).markers]
        assert found == [(0, "G_M"), (288, "Bb_M"), (400, "louder"), *last]


def test_behind_bars_with_other_chords_a_chord_that_begins_there_stays():
    score = accompanied()
    score.markers = [Marker(0, "G_M"), Marker(576, "C_M")]
    _, (file,) = write(score, SONGS, rewrite="2", chords="Bb", key="F")
    found = [(marker.tick, marker.text) for marker in file.markers]
    assert found == [(0, "G_M"), (288, "Bb_M"), (576, "C_M")]


def test_notes_end_with_the_bars_that_are_rewritten():
    model, score = music_model(SONGS), accompanied()
    model.model.head.bias.data[SONGS.families["Duration"].stop - 1] = 99  # sixteen beats
    (piece,) = model.generate(score, rewrite="2-3", keep="voice", seed=0)
    file = loads(piece.midi_file().data)
    written = [row for track in file.tracks[1:3] for row in notes_between(track, 288, 768)]
    assert written
    assert {onset + duration for onset, duration, *_ in written} == {768}
