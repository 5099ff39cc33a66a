"""The page reads MIDI files as the package does: one table of cases for both readers."""

import pytest

from musicgen.midi import loads
from tests.generation.builders import PromptFile, meta, notes, program
from tests.plugins.page.node import needs_node, run_worker

MELODY, BASS = notes((0, 60), (480, 62)), notes((0, 36), (960, 38), channel=1)
HITS = notes((0, 36), (480, 38), channel=9)
PLAIN = PromptFile([MELODY, BASS]).data()
SIGNATURE = bytes([4, 2, 24, 8])


def with_length(data, wrong):
    """The file with another length of its first track."""
    at = data.index(b"MTrk") + 4
    length = int.from_bytes(data[at : at + 4], "big") + wrong
    return data[:at] + length.to_bytes(4, "big") + data[at + 4 :]


def gs(part, kind):
    """A message of GS; kind 0 is melodies, 1 and 2 are drums."""
    return bytes([0xF0, 10, *b"A\x10B\x12@", part, 0x15, kind, 0, 0xF7])


# Each with the tracks (name, program, drums, notes) and the time signatures that it has.
CASES = {
    "plain": (PLAIN, [("", 0, False, 2), ("", 0, False, 2)], []),
    "programs in a track of their own": (
        PromptFile([[*program(33, 1), *program(48, 0)], MELODY, BASS]).data(),
        [("", 48, False, 2), ("", 33, False, 2)],
        [],
    ),
    "a program of its own comes first": (
        PromptFile([[*program(33, 0)], [*program(5, 0), *MELODY], MELODY]).data(),
        [("", 5, False, 2), ("", 33, False, 2)],
        [],
    ),
    "RMID": (
        b"RIFF\x99\0\0\0RMIDdata\x80\0\0\0" + PLAIN,
        [("", 0, False, 2), ("", 0, False, 2)],
        [],
    ),
    "a metre of one beat": (
        PromptFile([[*meta(0, 0x58, b"\x01\x02\x18\x08"), *meta(960, 0x58, SIGNATURE), *MELODY]]),
        [("", 0, False, 2)],
        [(960, 4, 4)],
    ),
    "a track longer than its length": (
        with_length(PLAIN, -6),
        [("", 0, False, 2), ("", 0, False, 2)],
        [],
    ),
    "a track shorter than its length": (
        with_length(PLAIN, 30),
        [("", 0, False, 2), ("", 0, False, 2)],
        [],
    ),
    "a Latin-1 name": (
        PromptFile([[*meta(0, 3, b"Fl\xf6te"), *MELODY]]),
        [("Flöte", 0, False, 2)],
        [],
    ),
    "a Japanese name": (
        PromptFile([[*meta(0, 3, "ピアノ".encode("cp932")), *MELODY]]),
        [("ピアノ", 0, False, 2)],
        [],
    ),
    "drums by bank": (
        PromptFile([[(0, b"\xb1\x00\x7f"), *program(8, 1), *BASS]]),
        [("", 8, True, 2)],
        [],
    ),
    "a melody on channel 9 by bank": (
        PromptFile([[(0, b"\xb9\x00\x79"), *program(40, 9), *HITS]]),
        [("", 40, False, 2)],
        [],
    ),
    "drums by a message of GS": (
        PromptFile([[(0, gs(0x1A, 2)), *notes((0, 36), (480, 38), channel=10), *HITS]]),
        [("", 0, True, 4)],
        [],
    ),
    "melodies on channel 9 by messages": (
        PromptFile([[(0, gs(0x10, 0)), *program(40, 9), *HITS]]),
        [("", 40, False, 2)],
        [],
    ),
    "drums by a message of XG": (
        PromptFile([[(0, b"\xf0\x08C\x10L\x08\x01\x07\x02\xf7")], BASS, MELODY]),
        [("", 0, True, 2), ("", 0, False, 2)],
        [],
    ),
    "a channel on two ports": (
        PromptFile(
            [
                [*meta(0, 0x21, b"\0"), *program(40, 0), (0, gs(0x11, 1)), *MELODY],
                [*meta(0, 0x21, b"\1"), *program(33, 1), *MELODY, *HITS],
                [*meta(0, 0x21, b"\1"), (0, gs(0x10, 0)), *BASS],
            ]
        ),
        [("", 40, True, 2), ("", 0, False, 2), ("", 0, False, 2), ("", 33, False, 2)],
        [],
    ),
    "ends in another track": (
        PromptFile([[*BASS[:1], *MELODY[:1], *BASS[2:], *MELODY[2:]], [*BASS[1:2], *MELODY[1:2]]]),
        [("", 0, False, 2), ("", 0, False, 2)],
        [],
    ),
    "notes without an end": (
        PromptFile([[*MELODY[:1], (240, MELODY[0][1]), *MELODY[1:3], (9000, b"\xb0\x07\0")]]),
        [("", 0, False, 3)],
        [],
    ),
    "all notes off": (
        PromptFile([[*MELODY[:1], (0, BASS[0][1]), (120, b"\xb0\x7b\0"), *MELODY[2:], *BASS[1:]]]),
        [("", 0, False, 2), ("", 0, False, 2)],
        [],
    ),
    "all sound off in another track": (
        PromptFile([[*MELODY[:1], *BASS], [(120, b"\xb0\x78\0"), *MELODY[2:]]]),
        [("", 0, False, 1), ("", 0, False, 2), ("", 0, False, 1)],
        [],
    ),
    "running status across a message": (
        PromptFile([[*MELODY[:3], (500, b"\xf0\x02\x7f\xf7"), (600, b"\x3e\0"), *MELODY[3:]]]),
        [("", 0, False, 2)],
        [],
    ),
    "messages in real time": (
        PromptFile([[*MELODY[:1], (100, b"\xf8"), (200, b"\xfe"), (240, b"\x3c\0"), *MELODY[2:]]]),
        [("", 0, False, 2)],
        [],
    ),
    "a name with a byte order mark": (
        PromptFile([[*meta(0, 3, "\ufeffGeige".encode()), *MELODY]]),
        [("Geige", 0, False, 2)],
        [],
    ),
    "the name of an instrument": (
        PromptFile(
            [[*meta(0, 4, b"Violin"), *MELODY], [*meta(0, 3, b"A"), *meta(0, 4, b"B"), *BASS]]
        ),
        [("Violin", 0, False, 2), ("A", 0, False, 2)],
        [],
    ),
    "two instruments of a track": (
        PromptFile([[*meta(0, 3, b"Title"), *program(33, 1), *MELODY, *BASS, *HITS]]),
        [("", 0, False, 2), ("", 33, False, 2), ("", 0, True, 2)],
        [],
    ),
}
DATA = {name: getattr(case[0], "data", lambda data=case[0]: data)() for name, case in CASES.items()}


@pytest.mark.parametrize("name", CASES)
def test_the_package_reads_each_file(name):
    _, tracks, signatures = CASES[name]
    score = loads(DATA[name])
    found = [(t.name, t.program, t.is_drum, len(t.notes)) for t in score.tracks]
    assert (found, score.time_signatures) == (tracks, signatures)


@needs_node
def test_the_page_reads_each_file_alike(tmp_path):
    body = "return data.map((bytes) => readMidi(Uint8Array.from(bytes)));"
    scores = run_worker(tmp_path, [list(data) for data in DATA.values()], body)
    for (name, (_, tracks, signatures)), score in zip(CASES.items(), scores, strict=True):
        found = [(t["name"], t["program"], t["isDrum"], len(t["notes"])) for t in score["tracks"]]
        assert found == tracks, name
        assert [tuple(each) for each in score["signatures"]] == signatures, name
        notes_of_package = [t.notes.tolist() for t in loads(DATA[name]).tracks]
        notes_of_page = [sorted(map(tuple, track["notes"])) for track in score["tracks"]]
        assert notes_of_page == notes_of_package, name
