"""Files of other programs: damage that is repaired, and what the parser alone does not find."""

import os
import struct
from io import BytesIO

import mido
import pytest

from musicgen.errors import UserError
from musicgen.midi import Score, extend, find_music, loads, read
from tests.generation.builders import PromptFile, meta, notes, program, track_bytes

END = b"\x00\xff\x2f\x00"
MELODY, SECOND = notes((0, 60), (480, 62)), notes((0, 48), (960, 50), channel=1)
PLAIN = PromptFile([MELODY, SECOND])
TITLED = PromptFile(
    [[*meta(0, 3, b"Vocal"), *program(33, 1), *MELODY, *SECOND], [*meta(0, 3, b"Kit"), *MELODY]]
)


def sounding(data):
    return sorted(loads(data).notes.tolist())


def sized(*tracks, excess=(), division=480, count=None, header=b""):
    """A file whose tracks have lengths that are wrong by some bytes."""
    count = len(tracks) if count is None else count
    data = b"MThd" + struct.pack(">IHHH", 6 + len(header), 1, count, division) + header
    for track, wrong in zip(tracks, [*excess, *[0] * len(tracks)], strict=False):
        body = track_bytes(track) + END
        data += b"MTrk" + struct.pack(">I", len(body) + wrong) + body
    return data


LENGTH = "1 track of a wrong length"
REPAIRED = {
    "into the next track": (sized(MELODY, SECOND, excess=[30]), LENGTH),
    "past the next track": (sized(MELODY, SECOND, excess=[1000]), LENGTH),
    "past the end": (sized(MELODY, SECOND, excess=[0, 9]), LENGTH),
    "too small": (sized(MELODY, SECOND, excess=[-6]), LENGTH),
    "too many tracks in the header": (sized(MELODY, SECOND, count=9), "number of tracks"),
    "too few tracks in the header": (sized(MELODY, SECOND, count=1), "number of tracks"),
    "a long header": (sized(MELODY, SECOND, header=b"\0\1"), ""),
    "RMID": (b"RIFF\x99\0\0\0RMIDdata\x80\0\0\0" + PLAIN.data() + b"LIST\4\0\0\0INFO", ""),
    "MacBinary": (bytes(128) + PLAIN.data(), ""),
    **{
        f"{kind:x} of {value!r}": (sized([(0, event), *MELODY], SECOND), "1 change of tempo, metre")
        for kind, whole, wrong in (
            *((0x51, 3, b"\0\0\0"), (0x58, 4, b"\0\2\x18\x08")),
            *((0x59, 2, b"\x08\0"), (0x59, 2, b"\xf8\0")),
        )
        for value in (*(b"\x04\x02\x03"[:length] for length in range(whole)), wrong)
        for event in [bytes([0xFF, kind, 0x80, len(value)]) + value]  # two bytes for the length
    },
}


@pytest.mark.parametrize("name", REPAIRED)
def test_repaired_files_have_all_their_notes(name):
    data, repair = REPAIRED[name]
    score = loads(data)
    assert sorted(score.notes.tolist()) == sounding(PLAIN.data())
    assert not [*score.time_signatures, *score.key_signatures]
    assert [repair in line for line in score.repairs] == [True] * bool(repair)
    written = extend(data, 960, Score(), lambda tracks: [None] * len(tracks), whole=True, sustain=0)
    mido.MidiFile(file=BytesIO(written))  # which refuses what is without a meaning


@pytest.mark.parametrize(
    ("name", "encoding"),
    [
        *((name, "cp932") for name in ("ピアノ", "主旋律 2", "ﾋﾟｱﾉ")),
        *((name, "latin-1") for name in ("Für Elise", "Cláudio", "Été " * 50)),
        ("夜 ♫", "utf-8"),
    ],
)
def test_names_that_are_not_utf8(name, encoding):
    data = PromptFile([[*meta(0, 3, name.encode(encoding)), *MELODY]]).data()
    assert loads(data).tracks[0].name == name


@pytest.mark.parametrize(
    ("events", "is_drum"),
    [
        ([(0, b"\xb4\x00\x7f"), *program(0, 4)], True),
        ([(0, b"\xb4\x00\x78")], True),
        ([(0, b"\xb4\x07\x64"), (0, b"\x00\x7e"), *program(25, 4)], True),  # running status
        ([(0, b"\xb4\x00\x00"), *program(25, 4)], False),
        ([(0, b"\xb4\x00\x7f"), (0, b"\xb4\x00\x00")], False),
        ([(0, b"\xf0\x0aA\x10B\x12@\x15\x15\x01\x15\xf7"), (0, b"\xb4\x00\x00")], True),  # GS
        ([(0, b"\xf0\x08C\x10L\x08\x04\x07\x02\xf7")], True),  # XG
        ([(0, b"\xf0\x08C\x10L\x08\x04\x07\x00\xf7")], False),
        *((meta(0, 3, name), True) for name in (b"Drum Kit", b"percussion")),
        (meta(0, 3, b"Steel Drums"), False),
        ([*meta(0, 3, b"Kit"), *program(11, 4)], False),
    ],
)
def test_drums_are_found_by_bank_and_name(events, is_drum):
    played = notes((0, 36), (480, 38), channel=4)
    for tracks in ([[*events, *played]], [events, played]):
        if len(tracks) == 1 or any(0xB0 <= event[0] <= 0xF0 for _, event in events):
            score = loads(PromptFile(tracks).data())
            assert [t.is_drum for t in score.tracks if len(t.notes)] == [is_drum]


def test_a_bank_of_melodies_makes_channel_9_a_melody():
    """GM2's bank 121 on the channel that has drums without it."""
    played = notes((0, 60), (480, 62), channel=9)
    for bank, is_drum in ((121, False), (120, True), (0, True)):
        events = [(0, b"\xb9\x00" + bytes([bank])), *program(40, 9), *played]
        (track,) = loads(PromptFile([events]).data()).tracks
        assert (track.program, track.is_drum) == (40, is_drum)


ON, AGAIN, OFF = ((0, b"\x90\x3c\x50"), (240, b"\x90\x3c\x50"), (480, b"\x80\x3c\0"))
SILENCE = (360, b"\xb0\x7b\0")


@pytest.mark.parametrize(
    ("tracks", "durations"),
    [
        ([[ON], [OFF]], [480]),
        ([[ON], [OFF, (900, OFF[1])], [AGAIN]], [480, 660]),  # the first that begins ends first
        ([[ON], [(0, b"\x91\x3c\x50"), OFF]], [480, 480]),  # of channel 1: no end
        ([[ON, (960, b"\xb0\x07\x40")], [*meta(0, 0x21, b"\1"), OFF]], [960]),  # another port
        ([[ON, SILENCE, (960, b"\x80\x3c\0")]], [360]),
        ([[ON, (360, b"\xb0\x78\0")]], [360]),
        ([[ON, (360, b"\xb1\x78\0"), OFF]], [480]),  # of another channel
        ([[ON, (240, SILENCE[1]), AGAIN, OFF]], [240, 240]),
        ([[AGAIN, (240, SILENCE[1]), OFF]], [240]),  # it begins at the same time
        ([[ON], [SILENCE]], [360]),
        ([[ON, OFF], [SILENCE]], [480]),  # it has an end of its own
    ],
)
def test_a_note_ends_by_a_controller_or_in_another_track(tracks, durations):
    score = loads(PromptFile(tracks).data())
    assert [n["duration"] for t in score.tracks for n in t.notes] == durations


def test_messages_amid_the_events_of_a_track():
    """Running status goes on after SysEx; messages in real time have no meaning in a file."""
    for message in (b"\xf0\x02\x7f\xf7", b"\xf8", b"\xfe", b"\xfa"):
        data = PromptFile([[ON, (100, message), (480, b"\x3c\0"), (480, b"\x3e\x50"), OFF]]).data()
        notes_of = [tuple(n)[:3] for n in loads(data).tracks[0].notes.tolist()]
        assert notes_of[0] == (0, 480, 60)
        assert notes_of[1][0::2] == (480, 62)


def test_the_name_of_several_instruments_is_their_title():
    tracks = [(t.name, t.program, t.is_drum) for t in loads(TITLED.data()).tracks]
    assert tracks == [("", 0, False), ("", 33, False), ("Kit", 0, True)]
    beside_drums = [*meta(0, 3, b"Kit"), *MELODY, *notes((0, 36), channel=9)]
    assert not loads(PromptFile([beside_drums]).data()).tracks[0].is_drum


def test_a_program_belongs_to_its_channel_in_whichever_track():
    setup = [*program(48, 0), *program(33, 1)]
    tracks = loads(PromptFile([setup, MELODY, SECOND, [*program(5, 0), *MELODY]]).data()).tracks
    assert [t.program for t in tracks if len(t.notes)] == [48, 33, 5]


def test_a_pedal_that_is_not_heard_is_mentioned():
    pedal = [(0, b"\xb0\x40\x7f"), (700, b"\xb0\x40\x00")]
    score = loads(PromptFile([[*MELODY, *pedal]]).data())
    assert score.repairs == ["1 note under the sustain pedal, which is not heard"]


def test_files_that_never_end_are_refused_and_other_suffixes_found(tmp_path):
    pipes = [tmp_path / "pipe.mid", tmp_path / "pipe.krn"]
    for path in pipes:
        os.mkfifo(path)
    for path in [*pipes, "/dev/zero"]:
        with pytest.raises(UserError, match="no regular file"):
            read(path)
    names = ["a.kar", "b.RMI", "c.smf", "d.midi"]
    for name in names:
        (tmp_path / name).write_bytes(PLAIN.data())
    assert [path.name for path in find_music(tmp_path)] == names
