"""The events of a track of a MIDI file."""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from musicgen.errors import UserError

META, SYSEX, CONTINUED, END_OF_TRACK = 0xFF, 0xF0, 0xF7, 0x2F
# Kinds of meta events.
TRACK_NAME, MARKER, TEMPO_CHANGE, TIME_SIGNATURE, KEY_SIGNATURE = 0x03, 0x06, 0x51, 0x58, 0x59
DRUM_CHANNEL = 9
LAST_TICK = 2**31 - 1


class Event(NamedTuple):
    """One event of a track.

    Attributes:
        status: of its own or running.
        content: the bytes after the status.
        start: where these begin in the file.
        stop: where they end.
    """

    tick: int
    status: int
    content: bytes
    start: int
    stop: int

    @property
    def channel(self) -> int:
        return self.status & 0xF

    @property
    def message(self) -> bytes:
        return bytes([self.status]) + self.content

    @property
    def meta(self) -> tuple[int, bytes]:
        """The kind and the value of a meta event."""
        return self.content[0], self.content[read_number(self.content, 1, len(self.content))[1] :]


def find_events(data: bytes, at: int, end: int) -> Iterator[Event]:
    """Yield the events of the track in `data[at:end]`, up to its end-of-track event.

    The last may end after the track, if that is cut short.

    Raises:
        UserError: there is damage after which the events have no meaning.
    """
    time = running = 0
    while at < end:
        delta, at = (data[at], at + 1) if data[at] < 0x80 else read_number(data, at, end)
        time += delta
        if time > LAST_TICK:
            raise broken("a time past 2^31 ticks", at)
        if at >= end:
            return
        status = running
        if data[at] & 0x80:
            status, at = data[at], at + 1
        content = at
        if 0x80 <= status < SYSEX:
            at += 1 if 0xC0 <= status < 0xE0 else 2
            if status < 0xA0:
                _check_note(data, status, content, end)
            running = status
        elif status == META:
            length, at = read_number(data, at + 1, end)
            at += length
        elif status in (SYSEX, CONTINUED):
            length, at = read_number(data, at, end)
            at += length
            running = 0
        else:
            raise broken("an event that is not supported", at)
        yield Event(time, status, data[content:at], content, at)
        if status == META and data[content : content + 1] == bytes([END_OF_TRACK]):
            return


def _check_note(data: bytes, status: int, at: int, end: int) -> None:
    """Raise unless the pitch and velocity of a note event, at `at` and after it, are below 128."""
    if at < end and data[at] & 0x80:
        raise broken("a pitch past 127", at + 2)
    if status >= 0x90 and at + 2 <= end and data[at + 1] & 0x80:
        raise broken("a velocity past 127", at + 2)


def number_bytes(value: int) -> bytes:
    """Return a variable-length number below 2^28."""
    groups = [value & 0x7F]
    while value := value >> 7:
        groups.append(value & 0x7F | 0x80)
    return bytes(reversed(groups))


def read_text(text: bytes) -> str:
    """Return a text: UTF-8, Shift-JIS or Latin-1, whichever fits.

    Latin-1 has no bytes from 0x81 to 0x9F, with which most characters of Shift-JIS begin; without
    them, a text that has no ASCII letter may be half-width katakana.
    """
    with suppress(UnicodeDecodeError):
        return text.decode()
    if re.search(rb"[\x81-\x9f]", text) or not re.search(rb"[A-Za-z]", text):
        with suppress(UnicodeDecodeError):
            return text.decode("cp932")
    return text.decode("latin-1")


def read_number(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the variable-length number at an offset, and the offset after it.

    Raises:
        UserError: it has more than four bytes.
    """
    if at < end and data[at] < 0x80:
        return data[at], at + 1
    value = 0
    for after, byte in enumerate(data[at : min(at + 4, end)], at + 1):
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, after
    if at + 4 > end:
        return value, max(at, end)
    raise broken("a number of more than 4 bytes", at)


def broken(reason: str, at: int) -> UserError:
    return UserError(f"broken MIDI ({reason} at byte {at}); get a whole copy")
