"""What must be done to a MIDI file's bytes before the parser sees them.

It crashes on some broken files, and loses notes that never end without a word.
"""

from __future__ import annotations

import re

from musicgen.errors import UserError

_HEADER = 14
# Sound events set the high bit in one byte at a time: only where two in a row have it can a number
# be long or a pitch be past 127, and only there is a walk through the events worth its time.
_SUSPICIOUS = re.compile(rb"[\x80-\xff]{2}")
_META, _SYSEX, _END_OF_TRACK = 0xFF, 0xF0, 0x2F
_LAST_TICK = 2**31 - 1

UNCLOSED = 2**24
"""Ticks by which `close_notes` lets a note outlast its track: more than any note of music."""

_NOTE_ON = [bytes([0x90 | channel]) for channel in range(16)]
# An off for every key, without the first one's time.
_ALL_OFF = [on + b"\0".join(bytes([key, 0]) for key in range(128)) for on in _NOTE_ON]
# After the time that the track's end had: nothing at all, and a long wait.
_WAIT = b"\xff\x7f\x00" + b"\x88\x80\x80\x00"
_END = b"\xff\x2f\x00"


def whole_chunks(data: bytes) -> bytes:
    """The data without trailing garbage.

    Raises:
        UserError: no MIDI header, a track that runs past the end of the file, or an event that
            the format does not allow.
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
            _check_events(data, start + 8, end)
        start = end
    return data[:start]


def close_notes(data: bytes, times: int) -> bytes:
    """Whole chunks in which every note ends: those that did not, `UNCLOSED` ticks after the track.

    Without it the parser leaves them out. Each key is let go so many times, as it may have been
    struck so often.
    """
    chunks, start = [data[:_HEADER]], 8 + int.from_bytes(data[4:8], "big")
    while start < len(data):
        end = start + 8 + int.from_bytes(data[start + 4 : start + 8], "big")
        body = data[start + 8 : end]
        offs = [off for on, off in zip(_NOTE_ON, _ALL_OFF, strict=True) if on in body]
        if data[start : start + 4] == b"MTrk" and offs:
            body = body.removesuffix(_END) if body.endswith(_END) else body + b"\0"
            body += _WAIT + b"\0".join([*offs * times, _END])
        chunks += [data[start : start + 4], len(body).to_bytes(4, "big"), body]
        start = end
    return b"".join(chunks)


def _check_events(data: bytes, at: int, end: int) -> None:
    """Walk a track's events as the parser does and refuse what leads it out of its memory.

    What is merely cut short is left to the parser to report.
    """
    time = running = 0
    while at < end:
        delta, at = _number(data, at, end)
        time += delta
        if time > _LAST_TICK:
            raise _broken("a time past 2^31 ticks", at)
        if at >= end:
            return
        status = data[at]
        if status & 0x80:
            at += 1
        else:
            status = running
        if status == _META:
            kind = data[at] if at < end else None
            length, at = _number(data, at + 1, end)
            at += length
            if kind == _END_OF_TRACK:
                return
        elif status == _SYSEX:
            length, at = _number(data, at, end)
            at += length
            running = 0
        elif 0x80 <= status < 0xF0:
            if status < 0xA0 and at < end and data[at] & 0x80:
                raise _broken("a pitch past 127", at)
            at += 1 if status >> 4 in (0xC, 0xD) else 2
            running = status
        else:  # also 0xF7, whose length the parser does not read
            raise _broken("an event that is not supported", at)


def _number(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The variable-length number at a place, and the place behind it."""
    value = 0
    for place in range(at, min(at + 4, end)):
        value = value << 7 | data[place] & 0x7F
        if not data[place] & 0x80:
            return value, place + 1
    if at + 4 > end:
        return value, end
    raise _broken("a number of more than 4 bytes", at)


def _broken(what: str, at: int) -> UserError:
    return UserError(f"broken MIDI ({what} at byte {at}); get a whole copy")
