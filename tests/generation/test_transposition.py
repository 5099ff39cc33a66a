"""Transposition of scores and of files, which other readers read."""

from __future__ import annotations

import io

import mido
import pytest

from musicgen.errors import UserError
from musicgen.generation.transposition import tonic_of, transpose, transpose_file
from musicgen.midi import PITCH_CLASSES, Marker, Score, Track, loads, notes_from
from tests.generation.kept_prompts import FILES, PromptFile, meta, scale


@pytest.mark.parametrize("title", FILES)
def test_a_file_moves_as_its_score_does_and_back_again(title):
    data = FILES[title].data()
    for semitones in (-3, 5):
        moved = transpose_file(data, semitones, PITCH_CLASSES)
        assert loads(moved) == transpose(loads(data), semitones, PITCH_CLASSES, "")
        back = transpose_file(moved, -semitones, PITCH_CLASSES)
        assert data.startswith(back)  # without garbage behind the last chunk
        assert len(back) >= len(data) - len(FILES[title].after)


def test_chords_and_key_signatures_move_too():
    """Mido names the keys of key signatures."""
    flats = ("C", "Db", "D", "Eb", "E", "F", "Gb", "G", "Ab", "A", "Bb", "B")
    events = [*meta(0, 6, b"A#_m7_F"), *meta(9, 6, b"chorus"), *meta(9, 0x59, b"\xfb\x01")]
    data = transpose_file(PromptFile([[*events, *scale()]]).data(), 5, flats)
    messages = list(mido.MidiFile(file=io.BytesIO(data)).tracks[0])
    assert [m.text for m in messages if m.type == "marker"] == ["Eb_m7_Bb", "chorus"]
    assert [m.key for m in messages if m.type == "key_signature"] == ["Ebm"]


def test_drums_stay_and_pitches_may_not_leave_the_range():
    tracks = [Track(notes=notes_from([(0, 9, 126, 64)])), Track("Kit", is_drum=True)]
    tracks[1].notes = notes_from([(0, 9, 127, 64)])
    score = Score(480, tracks, markers=[Marker(0, "B_M"), Marker(5, "N_N")])
    moved = transpose(score, 1, PITCH_CLASSES, "song.mid")
    assert [int(track.notes["pitch"][0]) for track in moved.tracks] == [127, 127]
    assert moved.markers == [Marker(0, "C_M"), Marker(5, "N_N")]
    with pytest.raises(UserError, match=r"song.mid: moved by 2 semitones .* 128"):
        transpose(score, 2, PITCH_CLASSES, "song.mid")


def test_tonics():
    names = ("C", "Db", "D", "eb", "E", "F", "F#", "g", "A♭", "A", "Bb", "B", "Cb", "B#")
    assert [tonic_of(name) for name in names] == [*range(12), 11, 0]
    for wrong in ("H", "Dm", "D minor", "", "C##", 2):
        with pytest.raises(UserError, match="expected a tonic such as D"):
            tonic_of(wrong)
