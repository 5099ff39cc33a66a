"""The events of the tracks of a MIDI file: one by one, or all at once in numpy arrays.

Arrays are quick. Nearly all events of a track have two data bytes. Each of them has exactly three
bytes below 128: the last byte of its delta time, and its data. So the places of these bytes tell
where each event begins, and no event needs a Python object of its own. Only events of other sizes
(meta events, SysEx, programs, channel pressure) are visited one by one.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from musicgen.errors import UserError
from musicgen.midi.score import IntArray

META, SYSEX, CONTINUED, END_OF_TRACK = 0xFF, 0xF0, 0xF7, 0x2F
FIRST_REAL_TIME = 0xF8  # the first status of messages without data, such as those of a clock
# Kinds of meta events.
TRACK_NAME, INSTRUMENT_NAME, MARKER, PORT = 0x03, 0x04, 0x06, 0x21
TEMPO_CHANGE, TIME_SIGNATURE, KEY_SIGNATURE = 0x51, 0x58, 0x59
DRUM_CHANNEL = 9
LAST_TICK = 2**31 - 1
# Kind and value: tempi, metres, keys with too few bytes; 0 bpm, 0/4, more than 7 sharps or flats.
_DAMAGED = re.compile(rb"Q(.{0,2}\Z|\0{3})|X(.{0,3}\Z|\0)|Y(.?\Z|[\x08-\xf8])", re.DOTALL)

Bytes = NDArray[np.uint8]
LongEvent = tuple[int, int, int | None, bytes]
"""Index, track, kind and value of a meta event or SysEx, see `EventArrays`."""

# In the stream of events that `_decode` reads, these stand for the status and the data of meta
# events, of SysEx and of ends of tracks. The first has no status, so that the running status stays.
_META_MARK, _SYSEX_MARK, _END_MARK = b"\0\0", b"\xf0\0\0", b"\xf7\0\0"
_END_OF_TRACK = bytes([END_OF_TRACK, 0])  # the bytes after the status
_HIGH_BYTES = bytes(range(0x80, 0x100))
_NO_STATUS = np.array([SYSEX], np.uint8)  # no running status follows it
# Whether an event has another number of data bytes than two, by status.
_HAS_OTHER_SIZE = bytes(each >= SYSEX or 0xC0 <= each < 0xE0 for each in range(256))
_OTHER_SIZES = np.frombuffer(_HAS_OTHER_SIZE, bool)


class Event(NamedTuple):
    """One event of a track.

    Attributes:
        status: the event's own or the running status.
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

    SysEx leaves the running status as it is, as some programs expect against the standard.
    Messages in real time, which belong on a cable, are left out. The last event may end after the
    track, if that is cut short.

    Raises:
        UserError: damage leaves the following events without a meaning.
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
        elif status in (META, SYSEX, CONTINUED):
            length, at = read_number(data, at + (status == META), end)
            at += length
        elif status >= FIRST_REAL_TIME:
            continue
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


def has_meaning(kind: int, value: bytes) -> bool:
    """Return whether a meta event has a meaning: no tempo of 0, no time signature of 0/4."""
    return not _DAMAGED.match(bytes([kind]) + value)


def number_bytes(value: int) -> bytes:
    """Return a variable-length number below 2^28."""
    groups = [value & 0x7F]
    while value := value >> 7:
        groups.append(value & 0x7F | 0x80)
    return bytes(reversed(groups))


def read_text(text: bytes) -> str:
    """Return a text: UTF-8, Shift-JIS or Latin-1, whichever fits.

    Most characters of Shift-JIS begin with a byte from 0x81 to 0x9F, which Latin-1 does not have.
    Without such bytes, a text that has no ASCII letter may be half-width katakana.
    """
    with suppress(UnicodeDecodeError):
        return text.decode("utf-8-sig")
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


class EventArrays(NamedTuple):
    """The events of a file, track after track. [num_events] each, unless stated otherwise

    Attributes:
        tick: in the track.
        channel: counted across tracks: 16 is channel 0 of the second track.
        kind: the status without the channel.
        first: the first data byte.
        second: the second data byte; 0 if there is none.
        ends: indices of the last events of the tracks. [num_tracks]
        long_events: index, track, kind and value of each meta event; the kind of SysEx is None.
    """

    tick: IntArray
    channel: IntArray
    kind: Bytes
    first: Bytes
    second: Bytes
    ends: IntArray
    long_events: list[LongEvent]


def find_events_at_once(data: bytes, tracks: list[tuple[int, int]]) -> EventArrays | None:
    """Return the events of a file; None if there is damage.

    Args:
        tracks: where each begins and ends in the file.
    """
    separation = _Separation(data)
    try:
        is_intact = all(separation.add_track(start, end) for start, end in tracks)
    except UserError:  # a number of more than four bytes
        return None
    return _decode(separation) if is_intact else None


class _Separation:
    """A stream of events that have two data bytes each, separated from the other events of a file.

    Attributes:
        stream: pieces of the stream, with marks in place of long events and ends of tracks.
        num_low: number of its bytes below 128; an event has three.
        long_events: meta events and SysEx.
        ends: indices of the ends of the tracks.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._candidates = data.translate(_HAS_OTHER_SIZE)
        self.stream, self.num_low = list[bytes](), 0
        self.long_events, self.ends = list[LongEvent](), list[int]()

    def add_track(self, start: int, end: int) -> bool:
        """Add the events of `data[start:end]`; return False if there is damage."""
        at, track = start, len(self.ends)
        while len(self.ends) == track:
            place = self._add_short_events(at, end)
            if not 0 <= place < end - 1 or self._data[place - 1] >= 0x80:
                return False
            status = self._data[place]
            if status < SYSEX:
                at = self._add_one_data_byte(place, end)
            elif status in (META, SYSEX, CONTINUED):
                at = self._add_long_event(place, end)
            else:
                return False
        return at == end

    def _add_short_events(self, start: int, end: int) -> int:
        """Add the bytes before the next status of an event of another size; return where that is.

        Return -1 if `end` comes first.
        """
        counted = place = start
        while (place := self._candidates.find(1, place, end)) >= 0:
            self.num_low += len(self._data[counted:place].translate(None, _HIGH_BYTES))
            if self.num_low % 3 == 1:
                self.stream.append(self._data[start:place])
                return place
            counted, place = place, place + 1  # this is part of a delta time
        return -1

    def _add_long_event(self, place: int, end: int) -> int:
        """Add the meta event or SysEx whose status is at `place`; return where it ends."""
        index, track, data = self.num_low // 3, len(self.ends), self._data
        is_meta = data[place] == META
        length, value = read_number(data, place + 1 + is_meta, end)
        stop = value + length
        if is_meta and data[place + 1 : stop] == _END_OF_TRACK:
            mark = _END_MARK
            self.ends.append(index)
        else:
            mark = _META_MARK if is_meta else _SYSEX_MARK
            kind = data[place + 1] if is_meta else None
            self.long_events.append((index, track, kind, data[value:stop]))
        self.stream.append(mark)
        self.num_low += 2
        return stop

    def _add_one_data_byte(self, place: int, end: int) -> int:
        """Add events with one data byte, given a second one; return where they end.

        The first has its status at `place`; those that follow by running status belong to it.
        """
        data, stop = self._data, place + 2
        piece = data[place:stop] + b"\0"
        while stop < end:
            _, after = read_number(data, stop, end)
            if after >= end or data[after] & 0x80:
                break
            piece += data[stop:after] + bytes([data[place], data[after], 0])
            stop = after + 1
        self.stream.append(piece)
        self.num_low += len(piece.translate(None, _HIGH_BYTES))
        return stop


def _decode(separation: _Separation) -> EventArrays | None:
    """Return the events of the stream of a file; None if there is damage."""
    stream = b"".join(separation.stream)
    values = np.frombuffer(stream, np.uint8)
    low = np.frombuffer(stream.translate(None, _HIGH_BYTES), np.uint8)
    # The other bytes, and how many bytes below 128 stand before each: of three in an event, none
    # before those of its delta time, one before its status.
    high = (values >= 0x80).nonzero()[0]
    num_low = high - np.arange(len(high))
    event = num_low // 3
    place = num_low - 3 * event
    high_bytes = values.take(high)
    of_delta, of_status = (place == 0).nonzero()[0], (place == 1).nonzero()[0]
    explicit, status = event.take(of_status), high_bytes.take(of_status)
    if len(of_delta) + len(of_status) < len(high) or (explicit[1:] == explicit[:-1]).any():
        return None
    # Delta times have seven bits per byte: the last byte, and at most three before it.
    of_event, delta = event.take(of_delta), low[0::3].astype(np.int64)
    if (of_event[3:] == of_event[:-3]).any():
        return None
    digits = (high_bytes.take(of_delta) & 0x7F).astype(np.int64) << 7
    for distance in (1, 2):  # of bytes that follow in the same number
        digits[:-distance] <<= 7 * (of_event[distance:] == of_event[:-distance])
    np.add.at(delta, of_event, digits)
    ends = np.array(separation.ends)
    starts = np.append(0, ends[:-1] + 1)
    last_ticks = np.add.reduceat(delta, starts)
    if last_ticks.max() > LAST_TICK:
        return None
    delta[starts[1:]] -= last_ticks[:-1]
    # An event without a status has that of the event before it. Meta events do not change it.
    edges = np.concatenate([[0], explicit, [len(delta)]])
    statuses = np.concatenate([_NO_STATUS, status]).repeat(edges[1:] - edges[:-1])
    metas = np.array([i for i, _, x, _ in separation.long_events if x is not None], np.int64)
    lacks_status = _OTHER_SIZES.take(statuses)
    lacks_status[explicit] = lacks_status[metas] = False
    if lacks_status.any():
        return None
    statuses[metas] = META
    channel = (16 * np.arange(len(ends))).repeat(ends + 1 - starts)
    channel += statuses & 0xF
    kind = statuses & np.uint8(0xF0)
    long_events = separation.long_events
    return EventArrays(delta.cumsum(), channel, kind, low[1::3], low[2::3], ends, long_events)
