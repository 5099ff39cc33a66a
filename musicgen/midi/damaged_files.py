"""Repairs of damaged MIDI files, on which the native parser crashes or drops open notes."""

from __future__ import annotations

import re
from collections import deque

from musicgen.errors import UserError
from musicgen.midi.events import find_chunks, find_events

# Numbers of several bytes, and pitches past 127, need two adjacent bytes with the high bit set.
# Sound events alone have none, so that most tracks need no walk through their events.
_HIGH_BITS = bytes(byte >> 7 for byte in range(256))
# Times of less than 2^18 ticks, each with sound events of one status, or a meta or SysEx event of
# less than 128 bytes.
_TIME = rb"(?:[\x80-\x8f]?[\x80-\xff])?[\0-\x7f]"
_SOUND = rb"[\x80-\xbf\xe0-\xef][\0-\x7f]{2}(?:%b[\0-\x7f]{2})*|[\xc0-\xdf][\0-\x7f]" % _TIME
_COUNTED = b"|".join(rb"\x%02x[\0-\xff]{%d}" % (length, length) for length in range(128))
_ORDINARY = re.compile(rb"(?:%b(?:%b|(?:\xff[\0-\xff]|\xf0)(?:%b)))*" % (_TIME, _SOUND, _COUNTED))
_MAX_ORDINARY = 2**15
"""Bytes of a track in which the times of ordinary events cannot add up to 2^31 ticks."""

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
    high_bits = data.translate(_HIGH_BITS)
    for start, end in find_chunks(data):
        is_track, excess = data[start : start + 4] == b"MTrk", end - len(data)
        if excess > 0 and is_track:
            place = f"{excess} bytes past the end of the file"
            raise UserError(f"cut short: a track ends {place}; get a whole copy")
        if excess > 0:
            return data[:start]
        if is_track and high_bits.find(b"\1\1", start, end) >= 0:
            ordinary = end - start < _MAX_ORDINARY and _ORDINARY.match(data, start + 8, end)
            if not ordinary or ordinary.end() < end:
                deque(find_events(data, start + 8, end), maxlen=0)  # raises
    return data[:end]


def close_notes(data: bytes, times: int) -> bytes:
    """Return checked data in which notes without an end last `UNCLOSED` ticks past the track.

    Each key gets `times` note-offs, since it may have been struck as often.
    """
    chunks = []
    for start, end in find_chunks(data):
        body = data[start + 8 : end]
        offs = [off for on, off in zip(_NOTE_ON, _ALL_OFF, strict=True) if on in body]
        if data[start : start + 4] == b"MTrk" and offs:
            body = body.removesuffix(_END) if body.endswith(_END) else body + b"\0"
            body += _PAUSE + b"\0".join([*offs * times, _END])
        chunks += [data[start : start + 4], len(body).to_bytes(4, "big"), body]
    return b"".join(chunks)
