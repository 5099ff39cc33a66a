"""Checks on a MIDI file's bytes that must come before the parser, which crashes where they fail."""

from __future__ import annotations

import re

from musicgen.errors import UserError

_HEADER = 14
# Only where four bytes in a row have the high bit can a number be longer than four bytes.
_SUSPICIOUS = re.compile(rb"[\x80-\xff]{4}")
_META, _SYSEX, _END_OF_TRACK = 0xFF, (0xF0, 0xF7), 0x2F


def whole_chunks(data: bytes) -> bytes:
    """The data without trailing garbage.

    Raises:
        UserError: no MIDI header, a track that runs past the end of the file, or a number longer
            than the format's four bytes.
    """
    if not data:
        raise UserError("the file is empty; export it again from a music program")
    if data[:4] != b"MThd" or len(data) < _HEADER:
        raise UserError("not a MIDI file (no MThd header); give a standard MIDI file")
    if data[12:14] == b"\0\0":
        raise UserError("the header says 0 ticks a beat; export it again from a music program")
    start = 0
    while start + 8 <= len(data):
        end = start + 8 + int.from_bytes(data[start + 4 : start + 8], "big")
        is_track = data[start : start + 4] == b"MTrk"
        if end > len(data):
            if is_track:
                raise UserError(
                    f"cut short: a track ends {end - len(data)} bytes past the end of the file; "
                    "get a whole copy"
                )
            break
        if is_track and _SUSPICIOUS.search(data, start, end):
            _check_numbers(data, start + 8, end)
        start = end
    return data[:start]


def _check_numbers(data: bytes, at: int, end: int) -> None:
    """Walk a track's events and refuse a variable-length number of more than four bytes."""
    status = 0
    while at < end:
        _, at = _number(data, at, end)
        if at >= end:
            return  # the parser reports what is merely cut short
        if data[at] & 0x80:
            status = data[at]
            at += 1
        if status == _META or status in _SYSEX:
            kind = data[at] if status == _META and at < end else None
            length, at = _number(data, at + (status == _META), end)
            at += length
            if kind == _END_OF_TRACK:
                return
        else:
            at += 1 if status >> 4 in (0xC, 0xD) else 2


def _number(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The variable-length number at a place, and the place behind it."""
    value = 0
    for place in range(at, min(at + 4, end)):
        value = value << 7 | data[place] & 0x7F
        if not data[place] & 0x80:
            return value, place + 1
    if at + 4 > end:
        return value, end
    raise UserError(f"broken MIDI (a number of more than 4 bytes at byte {at}); get a whole copy")
