"""Dirty MIDI files made by hand: which notes are kept, what is left out, and what the report says.

`tests/midi` has what is damaged or harmless, `tests/tokenization` what an encoding drops.
"""

import pytest

from musicgen.data.corpora import Piece
from musicgen.files import read_csv
from musicgen.midi import read
from musicgen.tokenization import REMI
from tests.data.builders import prepare
from tests.generation.builders import midi_file

BEAT = b"\x83\x60"  # 480 ticks
SIXTEENTH = b"\x78"  # 120 ticks


def midi(track, end=b"\x00\xff\x2f\x00"):
    return midi_file(track + end)


def on(pitch, channel=0):
    return bytes([0x90 | channel, pitch, 80])


def off(pitch, channel=0):
    return bytes([0x80 | channel, pitch, 64])


def note(pitch, channel=0):
    """A beat long."""
    return b"\x00" + on(pitch, channel) + BEAT + off(pitch, channel)


GOOD = note(60)
ONE_NOTE = {(0, 60, 4.0)}
CLOSED = "1 note without an end closed"

# Name: bytes, the notes kept as (grid step, pitch, steps), the report.
REPAIRED = {
    "never ends": (midi(b"\x00" + on(60) + note(64)), {(0, 60, 4.0), (0, 64, 4.0)}, CLOSED),
    "never ends, in a long track": (
        midi(b"\x00" + on(60) + note(64) + b"\x9e\x00\xff\x2f\x00", end=b""),
        {(0, 60, 16.0), (0, 64, 4.0)}, CLOSED,
    ),
    "struck last of all": (midi(b"\x00" + on(60)), {(0, 60, 0.5)}, "without an end closed"),
    "never ends, in a track without an end": (
        midi(b"\x00" + on(60) + note(64), end=b""), {(0, 60, 4.0), (0, 64, 4.0)}, CLOSED,
    ),
    "two ons, one off": (
        midi(b"\x00" + on(60) + BEAT + on(60) + BEAT + off(60) + BEAT + off(61)),
        {(0, 60, 4.0), (4, 60, 4.0)}, CLOSED,
    ),
    "only beginnings": (
        midi(b"".join(SIXTEENTH + on(60) for _ in range(40))),
        {(i, 60, 1.0) for i in range(1, 40)} | {(40, 60, 0.5)}, "40 notes without an end closed",
    ),
    "only an end": (midi(b"\x00" + off(60) + GOOD), ONE_NOTE, "all 1 note kept"),
    "no length": (midi(b"\x00" + on(60) + b"\x00" + off(60)), {(0, 60, 0.5)}, "all 1 note"),
    "overlap": (
        midi(b"\x00" + on(60) + SIXTEENTH + on(60) + BEAT + off(60) + b"\x00" + off(60)),
        {(0, 60, 1.0), (1, 60, 4.0)}, "1 note struck again while sounding clipped",
    ),
    "too low": (midi(GOOD + note(3)), ONE_NOTE, "1 note outside A0-C8 dropped"),
}  # fmt: skip
LEFT_OUT = {
    "cut short": (midi(GOOD)[:-9], "cut short"),
    "no notes": (midi(b""), "no note that the remi vocabulary can represent (no notes"),
    "drums alone": (midi(note(36, channel=9)), "1 note of drums dropped"),
}


def prepared(folder, files, **limits):
    """The cache of files given as bytes, and their rows of the report."""
    pieces = []
    for index, (label, data) in enumerate(files.items()):
        path = folder / f"{index}.mid"
        path.write_bytes(data)
        pieces.append(Piece(label, path, label))
    cache = prepare(pieces, read, REMI(chords=False), folder / "cache", limits=limits)
    return cache, {row["piece"]: row for row in read_csv(cache.folder / "report.csv")}


def test_what_is_repaired_and_what_is_left_out(tmp_path):
    files = {label: data for label, (data, *_) in (REPAIRED | LEFT_OUT).items()}
    cache, rows = prepared(tmp_path, files)
    assert cache.names == list(REPAIRED)
    for piece, (label, (_, expected, message)) in enumerate(REPAIRED.items()):
        notes = REMI(chords=False).decode(cache[piece]).tracks[0].notes
        assert {(o // 120, p, d / 120) for o, d, p, _ in notes.tolist()} == expected, label
        assert message in rows[label]["notes"], label
    for label, (_, reason) in LEFT_OUT.items():
        row = rows[label]
        assert (row["kept"], row["split"], row["tokens"]) == ("False", "", "0")
        assert reason in row["notes"], label
        assert str(tmp_path) not in row["notes"]


@pytest.mark.parametrize(
    ("limit", "kept", "reason"),
    [
        ({}, ["short", "long"], None),
        ({"max_megabytes": 0.0002}, ["short"], "larger than limits.max_megabytes=0.0002"),
        ({"max_tokens": 40}, ["short"], "more than limits.max_tokens=40 tokens"),
        ({"min_notes": 6}, ["long"], "fewer than limits.min_notes=6 notes"),
    ],
)
def test_limits_on_size(tmp_path, limit, kept, reason):
    files = {"short": midi(GOOD * 2), "long": midi(b"".join(note(60 + i % 12) for i in range(30)))}
    cache, rows = prepared(tmp_path, files, **limit)
    assert cache.names == kept
    for name in files.keys() - {*kept}:
        assert reason in rows[name]["notes"]
