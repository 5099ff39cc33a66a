"""Each rule for dirty MIDI, by a file made by hand: the notes kept, and the report."""

import csv
import struct

import pytest

from musicgen.data.corpora import Piece
from musicgen.midi import read
from musicgen.tokenization import REMI, Groove2Groove
from tests.data.listed import prepare

BEAT = b"\x83\x60"  # 480 ticks
SIXTEENTH = b"\x78"  # 120 ticks


def midi(*tracks, division=480, end=b"\x00\xff\x2f\x00"):
    data = b"MThd" + struct.pack(">IHHH", 6, 1, len(tracks), division)
    for track in tracks:
        data += b"MTrk" + struct.pack(">I", len(track + end)) + track + end
    return data


def on(pitch, velocity=80, channel=0):
    return bytes([0x90 | channel, pitch, velocity])


def off(pitch, channel=0):
    return bytes([0x80 | channel, pitch, 64])


def note(pitch, velocity=80, channel=0, after=b"\x00"):
    """A beat long."""
    return after + on(pitch, velocity, channel) + BEAT + off(pitch, channel)


def meta(kind, *data):
    return b"\x00" + bytes([0xFF, kind, len(data), *data])


def name(text):
    return meta(3, *text.encode())


GOOD = note(60)
ONE_NOTE = {(0, 60, 4.0)}
CLOSED = "1 notes without an end closed"

# Name: bytes, the notes kept as (grid step, pitch, steps), the report.
REMI_FILES = {
    "clean": (midi(GOOD), ONE_NOTE, "all 1 note kept"),
    "a tempo of 0": (midi(meta(0x51, 0, 0, 0) + GOOD), ONE_NOTE, "1 impossible tempi left out"),
    "a metre of 0/4": (
        midi(meta(0x58, 0, 2, 24, 8) + GOOD), ONE_NOTE, "1 unusable time signatures left out",
    ),
    "a metre of 4 / 2^200": (
        midi(meta(0x58, 4, 200, 24, 8) + GOOD), ONE_NOTE, "1 unusable time signatures left out",
    ),
    "another metre": (midi(meta(0x58, 7, 3, 24, 8) + GOOD), ONE_NOTE, "7/8 read as 4/4"),
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
    "twice at once": (
        midi(GOOD, note(60, 40, channel=1)), ONE_NOTE, "1 note doubling another dropped",
    ),
    "too long": (
        midi(b"\x00" + on(60) + b"\xa0\x00" + off(60)), {(0, 60, 16.0)},
        "1 note longer than 4 beats clipped",
    ),
    "too low": (midi(GOOD + note(3)), ONE_NOTE, "1 note outside A0-C8 dropped"),
    "drums": (midi(GOOD + note(36, channel=9)), ONE_NOTE, "1 note of drums dropped"),
    "several tracks": (
        midi(GOOD, note(64, channel=1), note(67, channel=2)),
        {(0, 60, 4.0), (0, 64, 4.0), (0, 67, 4.0)}, "all 3 notes kept",
    ),
    "quiet and loud": (
        midi(note(60, 1) + note(60, 127)), {(0, 60, 4.0), (4, 60, 4.0)}, "all 2 notes kept",
    ),
    "a gap of 200 M ticks": (
        midi(GOOD + note(62, after=b"\xdf\xaf\x84\x00")), ONE_NOTE,
        "1 note beyond bar 4096 dropped",
    ),
}  # fmt: skip
GROOVE_FILES = {
    "other metre": (
        midi(meta(0x58, 7, 3, 24, 8) + name("Bass") + GOOD), {("Bass", 0, 60)}, "all 1 note",
    ),
    "no instrument": (
        midi(name("Bass") + GOOD, name("Choir") + b"\x00\xc1\x60" + note(64, channel=1)),
        {("Bass", 0, 60)}, "1 note of tracks without an instrument dropped",
    ),
    "two tracks, one instrument": (
        midi(name("Piano") + GOOD, name("piano ") + note(64, channel=1)),
        {("Piano", 0, 60), ("Piano", 0, 64)}, "all 2 notes kept",
    ),
    "drums": (midi(name("x") + note(36, channel=9)), {("Drums", 0, 36)}, "all 1 note kept"),
}  # fmt: skip
LEFT_OUT = {
    "nothing": (b"", "the file is empty"),
    "a web page": (b"<html>404</html>", "not a MIDI file"),
    "cut short": (midi(GOOD)[:-9], "cut short"),
    "pitch past 127": (midi(b"\x00\x90\xbc\x50" + GOOD), "pitch past 127"),
    "velocity past 127": (midi(b"\x00\x90\x3c\xd0" + GOOD), "velocity past 127"),
    "division of 0": (midi(GOOD, division=0), "0 ticks a beat"),
    "frames": (midi(GOOD, division=0xE728), "Division|SMPTE"),
    "no notes": (midi(b""), "no note that the remi vocabulary can represent"),
    "drums alone": (midi(note(36, channel=9)), "1 note of drums dropped"),
}


def prepared(folder, files, tokenizer, **limits):
    """The cache of files given as bytes, and their rows of the report."""
    pieces = []
    for index, (label, data) in enumerate(files.items()):
        path = folder / f"{index}.mid"
        path.write_bytes(data)
        pieces.append(Piece(label, path, label))
    cache = prepare(pieces, read, tokenizer, folder / "cache", fractions=(0, 0), limits=limits)
    with (cache.folder / "report.csv").open(newline="") as file:
        return cache, {row["piece"]: row for row in csv.DictReader(file)}


def test_remi(tmp_path):
    remi = REMI(chords=False)
    cache, rows = prepared(tmp_path, {k: data for k, (data, _, _) in REMI_FILES.items()}, remi)
    assert cache.names == list(REMI_FILES)
    for piece, (label, (_, expected, message)) in enumerate(REMI_FILES.items()):
        notes = remi.decode(cache[piece]).tracks[0].notes
        got = {(o // 120, p, d / 120) for o, d, p, _ in notes.tolist()}
        assert got == expected, label
        assert message in rows[label]["notes"], label


def test_grooves(tmp_path):
    groove = Groove2Groove()
    cache, rows = prepared(tmp_path, {k: data for k, (data, _, _) in GROOVE_FILES.items()}, groove)
    assert cache.names == list(GROOVE_FILES)
    for piece, (label, (_, expected, message)) in enumerate(GROOVE_FILES.items()):
        tracks = groove.decode(cache[piece]).tracks
        got = {(t.name, o // 40, p) for t in tracks for o, _, p, _ in t.notes.tolist()}
        assert got == expected, label
        assert message in rows[label]["notes"], label
    assert cache.bar_lengths[0] == 42, "7/8"


def test_what_is_left_out(tmp_path):
    files = {"clean": midi(GOOD)} | {k: data for k, (data, _) in LEFT_OUT.items()}
    cache, rows = prepared(tmp_path, files, REMI())
    assert cache.names == ["clean"]
    for label, (_, reason) in LEFT_OUT.items():
        row = rows[label]
        assert (row["kept"], row["split"], row["tokens"]) == ("False", "", "0")
        assert any(part in row["notes"] for part in reason.split("|")), label
        assert str(tmp_path) not in row["notes"]


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ({"max_megabytes": 0.0002}, "larger than limits.max_megabytes=0.0002"),
        ({"max_tokens": 40}, "more than limits.max_tokens=40 tokens"),
        ({"min_notes": 6}, "fewer than limits.min_notes=6 notes"),
    ],
)
def test_limits_on_size(tmp_path, limit, reason):
    short, long = GOOD * 2, b"".join(note(60 + i % 12) for i in range(30))
    files = {"short": midi(short), "long": midi(long)}
    left_out, kept = ("short", "long") if "min_notes" in limit else ("long", "short")
    cache, rows = prepared(tmp_path, files, REMI(), **limit)
    assert cache.names == [kept]
    assert reason in rows[left_out]["notes"]
    (tmp_path / "2").mkdir()
    cache, _ = prepared(tmp_path / "2", files, REMI())
    assert cache.names == ["short", "long"]
