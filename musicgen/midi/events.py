"""The chunks of a MIDI file, and the events of its tracks as places in the bytes."""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from musicgen.errors import UserError

META, SYSEX, END_OF_TRACK = 0xFF, 0xF0, 0x2F
TRACK_NAME, MARKER = 0x03, 0x06  # kinds of meta events
DRUM_CHANNEL = 9
MAX_TRACKS = 512
"""More need gigabytes to read; an orchestra has a hundred."""
_LAST_TICK = 2**31 - 1


class Event(NamedTuple):
    """One event of a track.

    Attributes:
        status: of its own or running.
        content: where the bytes after the status begin: `data[content:stop]`.
    """

    tick: int
    status: int
    content: int
    stop: int


def find_chunks(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield where the chunks begin and end; the last may end past the data."""
    start = 0
    while start + 8 <= len(data):
        end = start + 8 + int.from_bytes(data[start + 4 : start + 8], "big")
        yield start, end
        start = end


def find_events(data: bytes, at: int, end: int) -> Iterator[Event]:
    """Yield the events of the track in `data[at:end]`, up to its end-of-track event.

    Raises:
        UserError: there is damage on which the native parser would read invalid memory; it
            reports truncated events itself.
    """
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
        content = at
        if status == META:
            length, at = _read_number(data, at + 1, end)
            at += length
        elif status == SYSEX:
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
        yield Event(time, status, content, at)
        if status == META and data[content : content + 1] == bytes([END_OF_TRACK]):
            return


def number_bytes(value: int) -> bytes:
    """Return a variable-length number below 2^28."""
    groups = [value & 0x7F]
    while value := value >> 7:
        groups.append(value & 0x7F | 0x80)
    return bytes(reversed(groups))


def text_bytes(kind: int, text: str) -> bytes:
    """Return a meta event of a kind with a text."""
    encoded = text.encode()
    return bytes([META, kind]) + number_bytes(len(encoded)) + encoded


def read_text(content: bytes) -> str:
    """Return the text in the content of a meta event: UTF-8, Shift-JIS or Latin-1, whichever fits.

    Latin-1 has no bytes from 0x81 to 0x9F, with which most characters of Shift-JIS begin; without
    them, a text that has no ASCII letter may be half-width katakana.
    """
    text = content[_read_number(content, 1, len(content))[1] :]
    with suppress(UnicodeDecodeError):
        return text.decode()
    if re.search(rb"[\x81-\x9f]", text) or not re.search(rb"[A-Za-z]", text):
        with suppress(UnicodeDecodeError):
            return text.decode("cp932")
    return text.decode("latin-1")


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
