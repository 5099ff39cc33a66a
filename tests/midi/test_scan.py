"""The quick reader of intact files finds what the reader of damaged files finds, or refuses."""

from contextlib import suppress

import numpy as np
import pytest

from musicgen.composer import compose_groove, compose_pop
from musicgen.errors import UserError
from musicgen.midi import dumps
from musicgen.midi.scan import scan_file
from musicgen.midi.tracks import file_parts, open_file
from tests.generation.builders import PromptFile, meta, notes, program
from tests.generation.builders import midi_file as midi

END = b"\x00\xff\x2f\x00"
MELODY = notes((0, 60), (480, 62), (960, 60))


def described(file):
    tracks = [
        (number, track.name, track.program, track.is_drum, track.notes.tolist())
        for number, _, track in file_parts(file.tracks)
    ]
    counts = [(x.num_unended, x.num_pedalled, sorted(x.banks.items())) for x in file.tracks]
    metas = [each.metas for each in file.tracks]
    programs = [(each.programs, each.first_programs, each.struck) for each in file.tracks]
    return file.ticks_per_beat, tracks, counts, metas, programs


INTACT = {
    "a pop song": dumps(compose_pop(0, 0)),
    "a groove": dumps(compose_groove(0, "funk", 0, 0)),
    "programs of another track": PromptFile([[*program(48, 0)], MELODY]).data(),
    "a program amid notes": PromptFile([[*MELODY, (700, b"\xc0\x05")]]).data(),
    "a bank of drums": PromptFile([[(0, b"\xb0\x00\x7f"), *MELODY]]).data(),
    "a bank after the first note": PromptFile([[*MELODY, (700, b"\xb0\x00\x7f")]]).data(),
    "drums by a message": PromptFile(
        [[(0, b"\xf0\x0aA\x10B\x12@\x11\x15\x01\x19\xf7"), *MELODY]]
    ).data(),
    "a pedal": PromptFile([[*MELODY, (100, b"\xb0\x40\x7f"), (700, b"\xb0\x40\x00")]]).data(),
    "a name": PromptFile([[*meta(0, 3, "Flöte".encode()), *MELODY]]).data(),
    "channel pressure by running status": midi(
        b"\x00\x90\x3c\x50\x00\xd0\x10\x10\x20\x81\x00\x30\x20\x80\x3c\x00" + END
    ),
    "running status across a text": midi(
        b"\x00\x90\x3c\x50\x00\xff\x06\x04\x90\x3c\xc0\xff\x60\x3c\x00" + END
    ),
    "delta times of four bytes": midi(
        b"\x81\x80\x80\x00\x90\x3c\x50\xff\xff\xff\x7f\x80\x3c\x00" + END
    ),
    "overlaps of a pitch": midi(
        b"\x00\x90\x3c\x50\x10\x3c\x60\x10\x3c\x00\x20\x3c\x00\x20\x3c\x00" + END
    ),
    "a lower note after one of 2^27 ticks": midi(
        b"\x81\x80\x80\x00\x90\x40\x50\xff\xff\xff\x7f\x80\x40\x00\x60\x90\x3c\x50\x60\x3c\x00"
        + END
    ),
    "a chord out of order, on two channels": midi(
        b"\x00\x91\x40\x50\x00\x90\x43\x50\x00\x3c\x50\x60\x43\x00\x00\x3c\x00\x00\x81\x40\x00"
        + END
    ),
    "delta times of one to three bytes": midi(
        b"\x81\x00\x90\x3c\x50\x82\x81\x03\x3c\x00\x10\x3e\x50\x83\x81\x82\x04\x3e\x00" + END
    ),
    "no event but the end": midi(END, b"\x00\x90\x3c\x50\x60\x3c\x00" + END),
    "notes without an end": midi(
        b"\x00\x90\x3c\x50\x10\x3c\x60\x10\x40\x50\x60\x3c\x00\x60\xb0\x07\x40" + END
    ),
    "controllers that end no note": PromptFile(
        [[*MELODY, *((tick, b"\xb0\x7b\0") for tick in (0, 480, 1920))]]
    ).data(),
    "melodies by a message": PromptFile(
        [[(0, b"\xf0\x0aA\x10B\x12@\x10\x15\0\x1b\xf7"), *notes((0, 60), channel=9)]]
    ).data(),
    "two ports": PromptFile(
        [[*meta(0, 0x21, b"\0"), *program(48, 0), *MELODY], [*meta(0, 0x21, b"\1"), *MELODY]]
    ).data(),
    "the name of an instrument": PromptFile([[*meta(0, 4, b"Violin"), *MELODY]]).data(),
    "ends without a note": midi(b"\x00\x80\x3c\x50\x10\x90\x3c\x60\x10\x3c\x00\x10\x3c\x00" + END),
}


@pytest.mark.parametrize("name", INTACT)
def test_intact_files_are_read_at_once_as_event_by_event(name):
    scanned = scan_file(INTACT[name])
    assert scanned is not None
    assert described(scanned) == described(open_file(INTACT[name]))


@pytest.mark.parametrize(
    "tracks",
    [
        [[(0, b"\x90\x3c\x50")], [(480, b"\x80\x3c\0")]],
        [[*MELODY, (100, b"\xb0\x7b\0")]],
        [[*MELODY, (0, b"\x90\x48\x50"), (1900, b"\xb0\x78\0")]],
        [[*MELODY, *((9 * n, b"\xb1\x7b\0") for n in range(101))]],
    ],
)
def test_notes_that_end_elsewhere_are_read_event_by_event(tracks):
    assert scan_file(PromptFile(tracks).data()) is None


def test_changed_bytes_are_noticed_or_read_alike():
    accepted = 0
    files = [data[:3000] for data in INTACT.values() if len(data) < 3000]
    for seed in range(600):
        rng = np.random.default_rng(seed)
        data = bytearray(files[rng.integers(len(files))])
        for _ in range(rng.integers(1, 4)):
            values = [rng.integers(128), rng.integers(256), 0x90, 0xC0]
            data[rng.integers(22, len(data))] = rng.choice(values, p=[0.7, 0.1, 0.1, 0.1])
        scanned = scan_file(bytes(data))
        if scanned is not None:
            accepted += 1
            assert described(scanned) == described(open_file(bytes(data))), seed
    assert 100 < accepted < 400


DAMAGED = {
    "two statuses in a row": b"\x00\x90\x90\x3c\x50\x60\x3c\x00" + END,
    "a status before a meta event": b"\x00\x90\xff\x06\x01A\x00\x90\x3c\x50\x60\x3c\x00" + END,
    "a velocity past 127": b"\x00\x90\x3c\xd0\x60\x3c\x00" + END,
    "no status at the beginning": b"\x00\x3c\x50\x60\x3c\x00" + END,
    "no status after a text and a program": b"\x00\xc0\x05\x00\xff\x06\x01A\x00\x3c\x50" + END,
    "a delta time of five bytes": b"\x81\x80\x80\x80\x00\x90\x3c\x50\x60\x3c\x00" + END,
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_events_are_refused(name):
    assert scan_file(midi(DAMAGED[name])) is None


def test_files_of_which_something_is_missing_are_refused():
    data = dumps(compose_pop(0, 0).clip(0, 1920))
    for cut in range(len(data)):
        with suppress(UserError):
            assert scan_file(data[:cut]) is None
