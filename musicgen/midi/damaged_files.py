"""Repairs of damaged MIDI files, on which the native parser crashes or drops open notes."""

import re
import struct
from collections import Counter

from musicgen.errors import UserError
from musicgen.midi.events import MAX_TRACKS, META, find_chunks, find_events
from musicgen.text import pluralize

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

_LONGEST_WRAPPER = 1024  # bytes before the header of a file in RIFF or MacBinary
# Tempi of 3 bytes, time signatures of 4 and key signatures of 2 that have fewer.
_SHORT_META = re.compile(rb"\xff(?:\x51[\0-\2]|\x58[\0-\3]|\x59[\0\1])")
_NO_MEANING = 0x7F  # the kind of meta events of a single program


def repaired(data: bytes) -> tuple[bytes, list[str]]:
    """Return a file that the parser can read, and what was changed in it, in words.

    What stands before the header and behind the last track is left out, as is the rest of a long
    header. Tracks end at their end-of-track events, whatever their lengths say; the header counts
    them. Meta events with too few bytes become ones without a meaning.

    Raises:
        UserError: there is no music with beats, or the parser may crash on it.
    """
    if not data:
        raise UserError("the file is empty; export it again from a music program")
    data = data[max(0, data.find(b"MThd", 0, _LONGEST_WRAPPER)) :]
    if data[:4] != b"MThd" or len(data) < 14:
        raise UserError("not a MIDI file (no MThd header); give a standard MIDI file")
    length, form, count, division = struct.unpack(">IHHH", data[4:14])
    if division == 0:
        raise UserError("the header says 0 ticks a beat; export it again from a music program")
    if division >> 15:
        raise UserError("its time is in frames (SMPTE), without beats; export it in ticks a beat")
    if length < 6 or 8 + length > len(data):
        raise UserError(f"broken MIDI (a header of {length} bytes); get a whole copy")
    tracks, chunks = 0, list[bytes]()
    changed: Counter[str] = Counter()
    at = 8 + length
    while at + 8 <= len(data):
        start, end = at, at + 8 + int.from_bytes(data[at + 4 : at + 8], "big")
        if data[at : at + 4] == b"MTrk":
            stop, at = _track_end(data, at + 8, end)
            changed["tracks of a wrong length, read to the end of its events"] += stop != end
            body = _without_short_meta(data[start + 8 : stop], changed)
            chunks.append(b"MTrk" + len(body).to_bytes(4, "big") + body)
            tracks += 1
        elif end > len(data):
            break
        else:
            chunks.append(data[at:end])
            at = end
    if form > 2 or (form == 2 and tracks > 1):
        what = "separate pieces (format 2)" if form == 2 else f"of an unknown format ({form})"
        raise UserError(f"its tracks are {what}; export it as format 1")
    if tracks > MAX_TRACKS:
        raise UserError(f"it has {tracks:,} tracks, more than {MAX_TRACKS}; split it")
    repairs = [pluralize(number, nouns) for nouns, number in changed.items() if number]
    if tracks != count:
        repairs.append("the header's number of tracks made right")
    header = struct.pack(">IHHH", 6, 1 if form == 1 else int(tracks > 1), tracks, division)
    return b"".join([b"MThd", header, *chunks]), repairs


def _track_end(data: bytes, start: int, end: int) -> tuple[int, int]:
    """Return where a track's events end, and where the next chunk begins.

    Raises:
        UserError: the file ends within the track, or the parser may crash on its events.
    """
    another = data.find(b"MTrk", start, end)
    is_whole = data[end - 3 : end] == _END and another < 0
    high_bits = data[start:end].translate(_HIGH_BITS)
    if b"\1\1" in high_bits or not is_whole:
        ordinary = is_whole and end - start < _MAX_ORDINARY and _ORDINARY.match(data, start, end)
        if not ordinary or ordinary.end() < end:
            return _walk_to_end(data, start, end)
    return end, end


def _walk_to_end(data: bytes, start: int, end: int) -> tuple[int, int]:
    """Return the same as `_track_end` by the track's events."""
    following = data.find(b"MTrk", max(start, min(end, len(data))))
    # A length may be too small: where it ends, neither a chunk nor the file's end follows.
    is_short = end < len(data) and not re.match(rb"[A-Za-z ]{4}", data[end : end + 4])
    limit = (following if following >= 0 else len(data)) if is_short else min(end, len(data))
    stop = 0
    for event in find_events(data, start, limit):
        if event.status == META and data[event.content : event.stop] == _END[1:]:
            stop = event.stop
    if stop:
        another = data.find(b"MTrk", stop, max(stop, end))
        return stop, another if another >= 0 else min(max(stop, end), len(data))
    if end > len(data):
        place = f"{end - len(data)} bytes past the end of the file"
        raise UserError(f"cut short: a track ends {place}; get a whole copy")
    return end, end


def _without_short_meta(body: bytes, changed: Counter[str]) -> bytes:
    """Return the events of a track, in which short meta events of music have an unknown kind."""
    if not _SHORT_META.search(body):
        return body
    fixed = bytearray(body)
    for event in find_events(body, 0, len(body)):
        if event.status == META and _SHORT_META.match(body, event.content - 1):
            fixed[event.content] = _NO_MEANING
            changed["meta events with too few bytes left out"] += 1
    return bytes(fixed)


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
