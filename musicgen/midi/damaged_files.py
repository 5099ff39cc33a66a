"""Repairs of damaged MIDI files, on which the native parser crashes or drops open notes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from musicgen.errors import UserError

# Numbers of several bytes, and pitches past 127, need two adjacent bytes with the high bit set.
# Sound events alone have none, so that most tracks need no walk through their events.
_SUSPICIOUS = re.compile(rb"[\x80-\xff]{2}")
_META, _SYSEX, _END_OF_TRACK = 0xFF, 0xF0, 0x2F
_LAST_TICK = 2**31 - 1

UNCLOSED = 2**24
"""Ticks after the end of the track at which `close_notes` ends notes: longer than any real note."""

_NOTE_ON = [bytes([0x90 | channel]) for channel in range(16)]
# A note-off for every key, without the first one's time.
_ALL_OFF = [on + b"\0".join(bytes([key, 0]) for key in range(128)) for on in _NOTE_ON]
# An empty event at the time of the track's end, then a pause.
_PAUSE = b"\xff\x7f\x00" + b"\x88\x80\x80\x00"
_END = b"\xff\x2f\x00"


def check_chunks(data: bytes) -> bytes:
    """Return the data without trailing garbage; raise `UserError` if the parser may crash on it."""
    if not data:
        raise UserError("the file is empty; export it again from a music program")
    if data[:4] != b"MThd" or len(data) < 14:
        raise UserError("not a MIDI file (no MThd header); give a standard MIDI file")
    if data[12:14] == b"\0\0":
        raise UserError("the header says 0 ticks a beat; export it again from a music program")
    for start, end in _chunks(data):
        is_track, excess = data[start : start + 4] == b"MTrk", end - len(data)
        if excess > 0 and is_track:
            place = f"{excess} bytes past the end of the file"
            raise UserError(f"cut short: a track ends {place}; get a whole copy")
        if excess > 0:
            return data[:start]
        if is_track and _SUSPICIOUS.search(data, start, end):
            _check_events(data, start + 8, end)
    return data[:end]


def close_notes(data: bytes, times: int) -> bytes:
    """Return checked data in which notes without an end last `UNCLOSED` ticks past the track.

    Each key gets `times` note-offs, since it may have been struck as often.
    """
    chunks = []
    for start, end in _chunks(data):
        body = data[start + 8 : end]
        offs = [off for on, off in zip(_NOTE_ON, _ALL_OFF, strict=True) if on in body]
        if data[start : start + 4] == b"MTrk" and offs:
            body = body.removesuffix(_END) if body.endswith(_END) else body + b"\0"
            body += _PAUSE + b"\0".join([*offs * times, _END])
        chunks += [data[start : start + 4], len(body).to_bytes(4, "big"), body]
    return b"".join(chunks)


def _chunks(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield where the chunks begin and end; the last may end past the data."""
    start = 0
    while start + 8 <= len(data):
        end = start + 8 + int.from_bytes(data[start + 4 : start + 8], "big")
        yield start, end
        start = end


def _check_events(data: bytes, at: int, end: int) -> None:
    """Raise where the parser would read invalid memory; it reports truncated events itself."""
    time = running = 0
    while at < end:
        delta, at = _read_number(data, at, end)
        time += delta
        if time > _LAST_TICK:
            raise _broken("a time past 2^31 ticks", at)
        if at >= end:
            return
        status = running
        if data[at] & 0x80:
            status, at = data[at], at + 1
        if status == _META:
            kind = data[at] if at < end else None
            length, at = _read_number(data, at + 1, end)
            at += length
            if kind == _END_OF_TRACK:
                return
        elif status == _SYSEX:
            length, at = _read_number(data, at, end)
            at += length
            running = 0
        elif 0x80 <= status < 0xF0:
            if status < 0xA0 and at < end and data[at] & 0x80:
                raise _broken("a pitch past 127", at)
            at += 1 if status >> 4 in (0xC, 0xD) else 2
            running = status
        else:  # including 0xF7, whose length the parser does not read
            raise _broken("an event that is not supported", at)


def _read_number(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the variable-length number at an offset, and the offset after it."""
    value = 0
    for offset in range(at, min(at + 4, end)):
        value = value << 7 | data[offset] & 0x7F
        if not data[offset] & 0x80:
            return value, offset + 1
    if at + 4 > end:
        return value, end
    raise _broken("a number of more than 4 bytes", at)


def _broken(reason: str, at: int) -> UserError:
    return UserError(f"broken MIDI ({reason} at byte {at}); get a whole copy")
