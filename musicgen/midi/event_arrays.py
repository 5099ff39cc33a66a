"""The events of all tracks of a MIDI file at once, in numpy arrays.

Nearly all events of a track have two data bytes. Each of them has exactly three bytes below 128:
the last byte of its delta time, and its data. So the places of these bytes tell where each event
begins, and no event needs a Python object of its own. Only events of other sizes (meta events,
SysEx, programs, channel pressure) are visited one by one.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from musicgen.errors import UserError
from musicgen.midi.events import (
    CONTINUED,
    END_OF_TRACK,
    LAST_TICK,
    META,
    SYSEX,
    read_number,
)

Indices = NDArray[np.int64]
Bytes = NDArray[np.uint8]

# In the stream of events that `_decode` reads, these stand for the status and the data of meta
# events, of SysEx and of ends of tracks. The first has no status, so that the running status stays.
_META_MARK, _SYSEX_MARK, _END_MARK = b"\0\0", b"\xf0\0\0", b"\xf7\0\0"
_END_OF_TRACK = bytes([END_OF_TRACK, 0])  # the bytes after the status
_HIGH_BYTES = bytes(range(0x80, 0x100))
_NO_STATUS = np.array([SYSEX], np.uint8)  # after which there is no running status
# For each byte, whether an event of this status has not two data bytes.
_HAS_OTHER_SIZE = bytes(each >= SYSEX or 0xC0 <= each < 0xE0 for each in range(256))
_OTHER_SIZES = np.frombuffer(_HAS_OTHER_SIZE, bool)


class LongEvent(NamedTuple):
    """A meta event or a SysEx message.

    Attributes:
        event: its index among all events of the file.
        track: the number of its track.
        kind: of a meta event; None for SysEx.
        value: the bytes after the length.
    """

    event: int
    track: int
    kind: int | None
    value: bytes


class EventArrays(NamedTuple):
    """The events of a file, track after track. [num_events] each, or [fewer] indices of events

    Attributes:
        tick: in the track.
        channel: counted on from track to track: 16 is channel 0 of the second track.
        status: its own or the running status.
        first: the first data byte.
        second: the second data byte; 0 where there is none.
        controllers: indices of the changes of controllers.
        programs: indices of the changes of program.
        ends: indices of the last events of the tracks.
        long_events: meta events and SysEx.
    """

    tick: Indices
    channel: Indices
    status: Bytes
    first: Bytes
    second: Bytes
    controllers: Indices
    programs: Indices
    ends: Indices
    long_events: list[LongEvent]

    def controls(self, number: int) -> Indices:
        """Return the indices of the changes of a controller."""
        return self.controllers[self.first.take(self.controllers) == number]


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
        stream: pieces of the stream. It has marks in place of long events and ends of tracks.
        low: its bytes below 128 in pieces: three of each event.
        num_low: their number.
        long_events: meta events and SysEx.
        programs: indices of the changes of program.
        ends: indices of the ends of the tracks.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._candidates = data.translate(_HAS_OTHER_SIZE)
        self.stream, self.low, self.num_low = list[bytes](), list[bytes](), 0
        self.long_events, self.programs, self.ends = list[LongEvent](), list[int](), list[int]()

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

        It is -1 if there is none before `end`.
        """
        counted = place = start
        while (place := self._candidates.find(1, place, end)) >= 0:
            low = self._data[counted:place].translate(None, _HIGH_BYTES)
            self.low.append(low)
            self.num_low += len(low)
            if self.num_low % 3 == 1:
                self.stream.append(self._data[start:place])
                return place
            counted, place = place, place + 1  # this is part of a delta time
        return -1

    def _add_long_event(self, place: int, end: int) -> int:
        """Add the meta event or SysEx whose status is at `place`; return where it ends."""
        index, data = self.num_low // 3, self._data
        is_meta = data[place] == META
        length, value = read_number(data, place + 1 + is_meta, end)
        stop = value + length
        if not is_meta:
            self.stream.append(_SYSEX_MARK)
            self.long_events.append(LongEvent(index, len(self.ends), None, data[value:stop]))
        elif data[place + 1 : stop] == _END_OF_TRACK:
            self.stream.append(_END_MARK)
            self.ends.append(index)
        else:
            self.stream.append(_META_MARK)
            kind = data[place + 1]
            self.long_events.append(LongEvent(index, len(self.ends), kind, data[value:stop]))
        self.low.append(b"\0\0")
        self.num_low += 2
        return stop

    def _add_one_data_byte(self, place: int, end: int) -> int:
        """Add events with one data byte, given a second one; return where they end.

        The first has its status at `place`; those that follow by running status belong to it.
        """
        data, status, stop = self._data, self._data[place], place + 2
        piece = data[place:stop] + b"\0"
        while stop < end:
            _, after = read_number(data, stop, end)
            if after >= end or data[after] & 0x80:
                break
            piece += data[stop:after] + bytes([status, data[after], 0])
            stop = after + 1
        low = piece.translate(None, _HIGH_BYTES)
        if status < 0xD0:
            index = self.num_low // 3
            self.programs += range(index, index + len(low) // 3 + 1)
        self.stream.append(piece)
        self.low.append(low)
        self.num_low += len(low)
        return stop


def _decode(separation: _Separation) -> EventArrays | None:
    """Return the events of the stream of a file; None if there is damage."""
    values = np.frombuffer(b"".join(separation.stream), np.uint8)
    low = np.frombuffer(b"".join(separation.low), np.uint8)
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
    delta = _delta_times(low[0::3], event.take(of_delta), high_bytes.take(of_delta))
    if delta is None:
        return None
    ends = np.array(separation.ends)
    starts = np.append(0, ends[:-1] + 1)
    last_ticks = np.add.reduceat(delta, starts)
    if last_ticks.max() > LAST_TICK:
        return None
    delta[starts[1:]] -= last_ticks[:-1]
    metas = [each.event for each in separation.long_events if each.kind is not None]
    statuses = _with_running_status(explicit, status, np.array(metas, np.int64), len(delta))
    if statuses is None:
        return None
    channel = (16 * np.arange(len(ends))).repeat(ends + 1 - starts)
    channel += statuses & 0xF
    return EventArrays(
        delta.cumsum(),
        channel,
        statuses,
        low[1::3],
        low[2::3],
        (statuses & 0xF0 == 0xB0).nonzero()[0],
        np.array(separation.programs, np.int64),
        ends,
        separation.long_events,
    )


def _delta_times(last: Bytes, event: Indices, digits: Bytes) -> Indices | None:
    """Return the delta time of each event; None if one has more than four bytes.

    Args:
        last: the last byte of each.
        event: the events of the bytes before the last ones, ascending.
        digits: these bytes.
    """
    if (event[3:] == event[:-3]).any():
        return None
    delta = last.astype(np.int64)
    value = (digits & 0x7F).astype(np.int64) << 7
    for distance in (1, 2):  # of bytes that follow in the same number
        value[:-distance] <<= 7 * (event[distance:] == event[:-distance])
    np.add.at(delta, event, value)
    return delta


def _with_running_status(
    explicit: Indices, status: Bytes, metas: Indices, size: int
) -> Bytes | None:
    """Return the status of each of `size` events; None if one has none.

    Args:
        explicit: the events that have a status of their own, ascending.
        status: what it is.
        metas: the events that have none.
    """
    edges = np.concatenate([[0], explicit, [size]])
    statuses = np.concatenate([_NO_STATUS, status]).repeat(edges[1:] - edges[:-1])
    has_none = _OTHER_SIZES.take(statuses)
    has_none[explicit] = has_none[metas] = False
    if has_none.any():
        return None
    statuses[metas] = META
    return statuses
