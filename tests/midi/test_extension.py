"""Music behind a file: what ends and what is set at the cut. Whole files: tests/generation."""

import io
from dataclasses import replace
from functools import partial

import mido
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from musicgen.errors import UserError
from musicgen.midi import TEMPO, Marker, Score, TimeSignature, Track, extend, loads, notes_from
from musicgen.midi.part_sharing import find_parts
from tests.generation.builders import BAR, FILES, PromptFile, notes, scale, timed

END = 2 * BAR
put_behind = partial(extend, find_tracks=lambda tracks: [0] * len(tracks), whole=False, sustain=BAR)
SONG = [(onset, 60 * (1 + onset % 3)) for onset in range(0, 1920, 240)]


def music(*rows, **fields) -> Score:
    """Rows of (onset, duration, pitch) at 960 ticks a beat."""
    played = notes_from([(*row, 64) for row in rows])
    return Score(960, [Track("Piano", notes=played)], **fields)


def extended(tracks, new: Score) -> list[tuple]:
    """Tick and event of all that follows END, without ends of tracks."""
    data = put_behind(PromptFile(tracks).data(), END, new)
    return [
        (tick - END, message.type, *message.bytes()[1:])
        for track in mido.MidiFile(file=io.BytesIO(data)).tracks
        for tick, message in timed(track)
        if tick >= END and message.type != "end_of_track"
    ]


def test_a_sounding_note_ends_where_its_key_is_struck_again():
    file = [notes((END - 480, 60, 4000), (END - 480, 62, 960))]
    assert extended(file, music((960, 480, 60))) == [
        (480, "note_off", 62, 0),  # where it was
        (480, "note_off", 60, 0),  # at 3520 in the file
        (480, "note_on", 60, 64),
        (720, "note_off", 60, 64),
    ]


def test_a_sounding_note_ends_a_bar_later_at_most():
    file = [notes((0, 60, END + BAR - 9), (0, 62, END + BAR + 9), (0, 64, END + 9 * BAR))]
    assert extended(file, music((0, 480, 72)))[2:] == [
        (BAR - 9, "note_off", 60, 0),
        (BAR, "note_off", 62, 0),
        (BAR, "note_off", 64, 0),
    ]


def test_a_whole_file_keeps_the_notes_behind_the_end():
    file = PromptFile([notes((END + 960, 60, 240), (END + 1920, 62, 9))]).data()
    found = loads(put_behind(file, END, music((0, 960, 60)), whole=True)).notes
    assert found["duration"].tolist() == [480, 240, 9]


def test_a_note_without_a_note_off_of_its_own_ends_where_it_did():
    """A controller or another track ends it; one that nothing ends is cut off."""
    (on, off), (other, _) = notes((0, 60, END + 300)), notes((0, 62), channel=1)
    silence = (END + 300, b"\xb0\x7b\0")
    for file in ([[on, silence]], [[on], [off]]):
        assert extended(file, music((0, 480, 72))) == [
            (0, "note_on", 72, 64),
            (240, "note_off", 72, 64),
            (300, "note_off", 60, 64),
        ]
    assert extended([[other]], music((0, 480, 72)))[0] == (0, "note_off", 62, 64)
    data = put_behind(PromptFile([[on, (480, silence[1])]]).data(), END, music((0, 480, 72)))
    assert loads(data).notes["duration"].tolist() == [480, 240]


def test_pedals_and_wheels_are_released_and_later_events_left_out():
    events = [(0, b"\xb0\x40\x7f"), (9, b"\xe0\x00\x50"), (END, b"\xb0\x07\x01"), *scale(1)]
    assert extended([[*events, (END + 9, b"\x90\x40\x40")]], music((0, 960, 72))) == [
        (0, "control_change", 64, 0),
        (0, "pitchwheel", 0, 64),
        (0, "note_on", 72, 64),
        (480, "note_off", 72, 64),
    ]


def test_changes_of_tempo_metre_and_chord_are_written():
    changes = {
        "tempos": np.array([(1920, 100.0)], dtype=TEMPO),
        "time_signatures": [TimeSignature(0, 6, 8)],
        "markers": [Marker(3840, "C_M")],
    }
    score = loads(put_behind(PromptFile([scale()]).data(), END, music((0, 960, 72), **changes)))
    assert score.tempos.tolist() == [(END + 960, 100.0)]
    assert score.time_signatures == [TimeSignature(END, 6, 8)]
    assert score.markers == [Marker(END + 1920, "C_M")]


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (PromptFile([scale(), scale()], format=2), "separate pieces"),
        (PromptFile([scale()], beat=12), "fewer than 24 ticks in a beat"),
        (FILES["type 0"], "too few MIDI channels"),
    ],
)
def test_files_that_cannot_be_extended_by_sixteen_tracks(file, reason):
    new = replace(music(), tracks=music((0, 9, 60)).tracks * 16)
    with pytest.raises(UserError, match=reason):
        put_behind(file.data(), END, new, find_tracks=lambda tracks: [None] * len(tracks))


@given(st.permutations([30, 50, 70, 90]), st.integers(-5, 5), st.booleans())
@settings(max_examples=40)
def test_parts_in_registers_of_their_own_keep_them(registers, shift, at_once):
    """Also if notes of all begin together, and in other registers nearby."""

    def part(i, pitch):
        return notes_from([(onset + 7 * i * (not at_once), n, pitch, 64) for onset, n in SONG])

    parts = [part(i, low) for i, low in enumerate(registers)]
    found = [find_parts(part(i, low + shift), parts) for i, low in enumerate(registers)]
    assert [each.tolist() for each in found] == [[i] * len(SONG) for i in range(4)]


def test_place_and_duration_tell_parts_of_one_register_apart():
    melody = notes_from([(onset, 240, 67, 90) for onset in range(0, 1920, 480)])
    chords = notes_from([(o, 240, p, 60) for o in range(0, 1920, 480) for p in (60, 64)])
    new = notes_from([(0, 240, 66, 64), (0, 240, 62, 64), (0, 240, 58, 64), (480, 240, 68, 64)])
    assert find_parts(new, [melody, chords]).tolist() == [1, 1, 0, 0]
    long = notes_from([(0, 1920, 67, 64), (1920, 1920, 65, 64)])
    assert find_parts(notes_from([(0, 1920, 68, 64), (1920, 1920, 66, 64)]), [melody, long]).all()


def test_a_part_that_has_not_played_takes_no_note_and_the_nearest_takes_a_far_one():
    low, none = notes_from([(0, 240, 24, 64)]), notes_from([])
    far = notes_from([(0, 9600, 127, 64)])
    assert find_parts(far, [none, low]).tolist() == [1]
    assert find_parts(np.concatenate([low, far]), [low, none]).tolist() == [0, 0]
