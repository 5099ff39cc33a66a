"""Damaged files raise errors of one line."""

from contextlib import suppress

import numpy as np
import pytest

from musicgen.composer import compose_groove, compose_pop
from musicgen.errors import UserError
from musicgen.midi import TEMPO, Marker, Score, Track, dumps, loads, notes_from
from musicgen.tokenization import REMI, Groove2Groove
from tests.generation.builders import midi_file as midi

END = b"\x00\xff\x2f\x00"
NOTE = b"\x00\x90\x3c\x50" + b"\x60\x80\x3c\x40"  # 96 ticks
LONGEST = b"\xff\xff\xff\x7f"  # 2^28 - 1 ticks


def is_read(data):
    with suppress(UserError):
        return loads(data) is not None


GOOD = midi(NOTE + END)
BROKEN = {
    "nothing": (b"", "empty"),
    "text": (b"<html>404</html>", "no MThd"),
    "header too long": (midi(NOTE + END, header_length=2**31), "past the end|broken"),
    "division 0": (midi(NOTE + END, division=0), "0 ticks"),
    "SMPTE": (midi(NOTE + END, division=0xE728), "frames"),
    "format 5": (midi(NOTE + END, form=5), "format"),
    "track too long": (midi(NOTE)[:18] + b"\0\0\0\x09" + NOTE, "ends 1 bytes past"),
    "format 2": (midi(NOTE + END, NOTE + END, form=2), "separate pieces"),
    "too many tracks": (midi(*[NOTE + END] * 513), "more than 512"),
    "5 bytes of time": (midi(b"\x81\x80\x80\x80\x00\x90\x3c\x50" + NOTE + END), "4 bytes"),
    "no kind": (midi(NOTE + b"\x00\xff"), "past the end"),
    "text past the end": (midi(NOTE + b"\x00\xff\x01\x7fabc"), "broken"),
    "time past 2^31": (midi((LONGEST + b"\x90\x3c\x00") * 9 + NOTE + END), r"2\^31"),
    "velocity past 127": (midi(b"\x00\x90\x3c\xd0\x60\x80\x3c\x40" + END), "velocity past 127"),
    "an escape after a note": (midi(NOTE + b"\x00\xf7\x94\xf1\x4c\x6d\x9f\xc1"), "past the end"),
    "a message of a cable": (midi(b"\x00\xf3\x01" + NOTE + END), "not supported"),
}
for channel in (0, 15):
    on, off = bytes([0, 0x90 | channel]), bytes([0x60, 0x80 | channel])
    BROKEN |= {
        f"pitch past 127, {channel}": (midi(on + b"\xbc\x50" + off + b"\xbc\x40" + END), "pitch"),
        f"its end alone, {channel}": (midi(off + b"\xff\x40" + END), "pitch"),
        # The running status still applies; the emoji makes the track suspicious.
        f"after a meta event, {channel}": (
            midi(on + b"\x3c\x50\x00\xff\x06\x04\xf0\x9f\x8e\xb5\x60\x3c\x00" + off + b"\xbc\x00"),
            "pitch",
        ),
    }


@pytest.mark.parametrize("name", BROKEN)
def test_damaged_files_raise_errors_of_one_line(name):
    data, reason = BROKEN[name]
    with pytest.raises(UserError, match=reason) as caught:
        loads(data)
    assert len(str(caught.value).splitlines()) == 1


def test_a_file_truncated_at_any_byte_raises():
    piano = Track("Piano", notes=notes_from([(0, 100, 60, 80), (480, 200, 62, 70)]))
    drums = Track("Drums", is_drum=True, notes=notes_from([(0, 10, 36, 80)]))
    whole = dumps(Score(480, [piano, drums], np.array([(0, 120)], TEMPO), [(0, 3, 4)]))
    assert is_read(whole)
    read = [cut for cut in range(len(whole)) if is_read(whole[:cut])]
    starts = [at for at in range(len(whole)) if whole[at : at + 4] == b"MTrk"]
    # Only truncation within the next track's header is not detected.
    assert all(any(start <= cut < start + 8 for start in starts) for cut in read)


def test_valid_long_numbers_are_read():
    name = "音楽 🎵" * 40
    track = Track(name, notes=notes_from([(2**27, 2**27 - 1, 60, 80)]))
    score = Score(480, [track], markers=[Marker(2**26, "é" * 300)])
    assert loads(dumps(score)) == score
    gaps = midi((LONGEST + b"\x90\x3d\x00") * 7 + NOTE + END)
    assert loads(gaps).tracks[0].notes.tolist() == [(7 * (2**28 - 1), 96, 60, 80)]


def test_files_with_harmless_errors_are_read():
    notes = [(0, 96, 60, 80)]
    for body in [
        NOTE,  # no end of track
        NOTE + END + b"\x00\x9f\xff\xff",  # events behind the end of track
        b"\x00\xf0\x03\x7e\x7f\xf7" + NOTE + END,  # a SysEx
        b"\x00\xf0\x02\x7e\x7f\x00\xf7\x02\x09\xf7" + NOTE + END,  # in two parts
        b"\x00\xff\x58\x04\x04\xc8\x18\x08" + NOTE + END,  # 4 / 2^200
        b"\x00\x90\x3c\x50\x60\x3c\x00" + END,  # running status
        b"\x00\x90\x3c\x50\x00\xff\x06\x03\xe9\xff\xff\x60\x3c\x00" + END,  # across Latin-1 text
    ]:
        score = loads(midi(body))
        assert [track.notes.tolist() for track in score.tracks] == [notes]
        assert len(score.tempos) == len(score.time_signatures) == 0
    assert loads(GOOD + b"MTrk\x00\x00") == loads(GOOD)
    assert loads(GOOD + b"XFIH\x00\x00\x00\x04\xff\xff\xff\xff") == loads(GOOD)


def test_flipped_bits_are_read_or_refused_in_one_line():
    pieces = compose_pop(0, 0), compose_groove(0, "funk", 0, 0)
    bases = [dumps(piece.clip(0, 7680)) for piece in pieces]
    refusals = []
    for seed in range(400):
        rng = np.random.default_rng(seed)
        data = bytearray(bases[seed % 2])
        for _ in range(rng.integers(1, 9)):
            data[rng.integers(len(data))] ^= 1 << rng.integers(8)
        if seed % 4 == 0:  # and a note of the last channel with a random pitch
            at = rng.integers(22, len(data) - 3)
            data[at : at + 2] = 0x80 | 0x10 * rng.integers(2) | 15, rng.integers(256)
        try:
            score = loads(bytes(data))
        except UserError as error:
            refusals.append(str(error))
            continue
        assert score.notes["velocity"].max(initial=0) < 128
        assert len(score.bar_starts()) < 100_000
        for tokenizer in (REMI(), Groove2Groove()) if seed < 50 else ():
            tokenizer.encode(score)
    assert 50 < len(refusals) < 350
    assert "\n" not in "".join(refusals)


def test_a_file_of_nothing_but_time_signatures_is_refused():
    def file(count):
        changes = (b"\1\xff\x58\4" + bytes([2 + i % 5, 2, 24, 8]) for i in range(count))
        return midi(b"".join(changes) + NOTE + END)

    assert len(loads(file(10_000)).time_signatures) == 10_000
    with pytest.raises(UserError, match="10,001 changes of the time signature, of at most 10,000"):
        loads(file(10_001))
