"""Pop1K7's reader on small songs in its published layout."""

import numpy as np

from musicgen.midi import TEMPO, Marker, Score, TimeSignature, Track, notes_from, read, write
from tests.data.builders import Pop1K7

BAR = 1920
read_song = Pop1K7(".").read


def make_song(path, notes, markers=()):
    score = Score(480, [Track("piano", notes=notes_from(notes))])
    score.tempos = np.array([(0, 92.0), (BAR + 480, 96.0)], TEMPO)
    score.markers = [Marker(0, "global_bpm_92"), *(Marker(*marker) for marker in markers)]
    write(score, path)
    return path


def test_a_song_starts_with_the_bar_of_its_first_note(tmp_path):
    notes = [(BAR - 50, 400, 60, 50), (BAR + 490, 240, 64, 60), (3 * BAR, 480, 67, 70)]
    markers = [(0, "N_N_N"), (480, "A_M7_A"), (2 * BAR, "C#_/o7_G")]
    score = read_song(make_song(tmp_path / "0.mid", notes, markers))
    (track,) = score.tracks
    # The first note is ahead of its bar by less than half a sixteenth, and is not lost.
    assert track.notes["onset"].tolist() == [0, 490, 2 * BAR]
    assert track.notes["duration"].tolist() == [400, 240, 480]
    assert score.markers == [Marker(0, "A_M7_A"), Marker(BAR, "C#_/o7_G")]
    assert [(tick, round(bpm)) for tick, bpm in score.tempos.tolist()] == [(0, 92), (480, 96)]


def test_bars_have_four_beats_whatever_the_time_signatures_say(tmp_path):
    score = read(make_song(tmp_path / "0.mid", [(BAR, 400, 60, 50), (3 * BAR, 480, 67, 70)]))
    score.time_signatures = [TimeSignature(0, 4, 4), TimeSignature(BAR + 480, 4, 4)]
    write(score, tmp_path / "1.mid")
    song = read_song(tmp_path / "1.mid")
    assert song.bar_starts().tolist() == [0, BAR, 2 * BAR]
    assert song.tracks[0].notes["onset"].tolist() == [0, 2 * BAR]


def test_a_note_well_ahead_of_the_bar_is_an_upbeat(tmp_path):
    score = read_song(make_song(tmp_path / "0.mid", [(BAR - 61, 60, 60, 50), (BAR, 60, 62, 50)]))
    assert score.tracks[0].notes["onset"].tolist() == [BAR - 61, BAR]


def test_the_published_layout_is_found_at_any_depth(tmp_path):
    for folder in ("midi_analyzed/src_001", "midi_transcribed/src_001", "midi_analyzed/src_002"):
        make_song(tmp_path / "data" / "Pop1K7" / folder / "0.mid", [(0, 480, 60, 50)])
    for root in (tmp_path / "data", tmp_path / "data" / "Pop1K7" / "midi_analyzed"):
        pieces = Pop1K7(root).pieces()
        assert [piece.name for piece in pieces] == ["src_001/0.mid", "src_002/0.mid"]
        assert all(piece.group == piece.name and piece.split is None for piece in pieces)
        assert Pop1K7(root).read(pieces[0].path) == read_song(pieces[0].path)


def test_a_file_without_notes_is_unchanged(tmp_path):
    path = make_song(tmp_path / "0.mid", [])
    assert read_song(path) == read(path)
