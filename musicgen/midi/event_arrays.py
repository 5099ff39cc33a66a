"""The events of all tracks of a MIDI file at once, in numpy arrays.

Nearly all events of a track have two data bytes. Each of them has exactly three bytes below 128:
the last byte of its delta time, and its data. So the places of these bytes tell where each event
begins, and no event needs a Python object of its own. Only events of other sizes (meta events,
SysEx, programs, channel pressure) are visited one by one.
"""

from bisect import bisect_left
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

# In the stream of events that `_decode` reads, these stand for meta events, SysEx and ends of
# tracks. Only the first leaves the running status as it was.
_META_MARK, _SYSEX_MARK, _END_MARK = b"\xff\0\0", b"\xf0\0\0", b"\xf7\0\0"
_HIGH_BYTES = bytes(range(0x80, 0x100))
_NO_STATUS = np.array([SYSEX], np.uint8)  # after which there is no running status


class LongEvent(NamedTuple):
    """A meta event of some kind, or a SysEx message, which has none."""

    kind: int | None
    value: bytes


class EventArrays(NamedTuple):
    """The events of a file, track after track. [num_events] each

    Attributes:
        tick: in the track.
        channel: counted on from track to track: 16 is channel 0 of the second track.
        status: its own or the running status; the first byte of a mark.
        first: the first data byte.
        second: the second data byte; 0 where there is none.
        marks: indices of the marks and of programs and channel pressure.
    """

    tick: Indices
    channel: Indices
    status: Bytes
    first: Bytes
    second: Bytes
    marks: Indices

    def controls(self, number: int) -> Indices:
        """Return the indices of the changes of a controller."""
        return np.flatnonzero((self.first == number) & (self.status >> 4 == 0xB))

    def programs(self) -> Indices:
        """Return the indices of the changes of program."""
        return self.marks[self.status[self.marks] >> 4 == 0xC]

    def ends(self) -> Indices:
        """Return the index of the last event of each track."""
        return self.marks[self.status[self.marks] == _END_MARK[0]]


def find_events_at_once(
    data: bytes, tracks: list[tuple[int, int]]
) -> tuple[EventArrays, list[LongEvent]] | None:
    """Return the events of a file, and its meta events and SysEx; None if there is damage.

    Args:
        tracks: where each begins and ends in the file.
    """
    try:
        separated = _separate(data, tracks)
    except UserError:  # a number of more than four bytes
        return None
    if separated is None:
        return None
    stream, long_events = separated
    events = _decode(stream)
    return None if events is None else (events, long_events)


def _separate(data: bytes, tracks: list[tuple[int, int]]) -> tuple[bytes, list[LongEvent]] | None:
    """Separate meta events and SysEx from the other events; return None if there is damage.

    Returns:
        A stream of events that have two data bytes each, with marks in place of long events and
        ends of tracks; and the long events.
    """
    values = np.frombuffer(data, np.uint8)
    high = np.flatnonzero(values >= 0x80)
    status = values.take(high)
    # A status follows the last byte of a delta time, which is below 128.
    follows_low = np.ones(len(high), bool)
    np.greater(high[1:] - high[:-1], 1, out=follows_low[1:])
    candidates = np.flatnonzero(_has_other_size(status) & follows_low)
    places = high.take(candidates)
    num_low, places = (places - candidates).tolist(), places.tolist()  # bytes below 128 before
    pieces, long_events = list[bytes](), list[LongEvent]()
    starts = np.array([start for start, _ in tracks])
    lows = (starts - np.searchsorted(high, starts)).tolist()
    for (start, end), low in zip(tracks, lows, strict=True):
        at, is_ended = start, False
        for i in range(bisect_left(places, start), bisect_left(places, end)):
            place = places[i]
            # Elsewhere it is part of a delta time, or within a long event.
            if place < at or (num_low[i] - low) % 3 != 1:
                continue
            status = data[place]
            if place + 1 == end:
                return None
            if status < SYSEX:
                piece, stop = _one_data_byte(data, place, end)
            elif status in (META, SYSEX, CONTINUED):
                piece, stop, event = _long_event(data, place, end)
                is_ended = event is None
                if event is not None:
                    long_events.append(event)
            else:
                return None
            pieces += data[at:place], piece
            if is_ended:
                at = stop
                break
            at, low = stop, num_low[i] + len(data[place:stop].translate(None, _HIGH_BYTES))
        if not is_ended or at != end:
            return None
    return b"".join(pieces), long_events


def _has_other_size(status: Bytes) -> NDArray[np.bool_]:
    """Return which events have not two data bytes, by their status."""
    return (status >= SYSEX) | ((status >= 0xC0) & (status < 0xE0))


def _long_event(data: bytes, place: int, end: int) -> tuple[bytes, int, LongEvent | None]:
    """Return the mark of the long event at `place`, where it ends, and the event.

    The event is None at the end of the track.
    """
    if data[place] != META:
        length, value = read_number(data, place + 1, end)
        stop = value + length
        return _SYSEX_MARK, stop, LongEvent(None, data[value:stop])
    length, value = read_number(data, place + 2, end)
    stop = value + length
    if data[place + 1 : stop] == bytes([END_OF_TRACK, 0]):
        return _END_MARK, stop, None
    return _META_MARK, stop, LongEvent(data[place + 1], data[value:stop])


def _one_data_byte(data: bytes, place: int, end: int) -> tuple[bytes, int]:
    """Return events with one data byte, given a second one, and where they end.

    The first has its status at `place`; those that follow by running status belong to it.
    """
    status, stop = data[place], place + 2
    piece = data[place:stop] + b"\0"
    while stop < end:
        _, after = read_number(data, stop, end)
        if after >= end or data[after] & 0x80:
            break
        piece += data[stop:after] + bytes([status, data[after], 0])
        stop = after + 1
    return piece, stop


def _decode(stream: bytes) -> EventArrays | None:
    """Return the events of a stream of `_separate`; None if there is damage."""
    values = np.frombuffer(stream, np.uint8)
    is_high = values >= 0x80
    low = np.frombuffer(stream.translate(None, _HIGH_BYTES), np.uint8)
    size = len(low) // 3
    if len(low) % 3 or is_high[-1]:
        return None
    # The other bytes, and how many bytes below 128 stand before each: of three in an event, none
    # before those of its delta time, one before its status.
    high = np.flatnonzero(is_high)
    event, place = np.divmod(high - np.arange(len(high)), 3)
    high_bytes = values.take(high)
    of_delta = np.flatnonzero(place == 0)
    of_status = np.flatnonzero(place == 1)
    explicit, status = event.take(of_status), high_bytes.take(of_status)
    if len(of_delta) + len(of_status) < len(high) or (explicit[1:] == explicit[:-1]).any():
        return None
    delta = _delta_times(low[0::3], event.take(of_delta), high_bytes.take(of_delta))
    if delta is None:
        return None
    ends = explicit[status == _END_MARK[0]]
    lengths = ends - np.append(-1, ends[:-1])
    tick = np.cumsum(delta)
    tick -= np.repeat(np.append(0, tick[ends[:-1]]), lengths)
    if tick[ends].max() > LAST_TICK:
        return None
    statuses = _with_running_status(explicit, status, size)
    if statuses is None:
        return None
    channel = np.repeat(16 * np.arange(len(ends)), lengths) + (statuses & 0xF)
    marks = explicit[_has_other_size(status)]
    return EventArrays(tick, channel, statuses, low[1::3], low[2::3], marks)


def _delta_times(last: Bytes, event: Indices, digits: Bytes) -> Indices | None:
    """Return the delta time of each event; None if one has more than four bytes.

    Args:
        last: the last byte of each.
        event: the events of the bytes before the last ones, ascending.
        digits: these bytes.
    """
    delta = last.astype(np.int64)
    value = (digits & 0x7F).astype(np.int64) << 7
    if (event[1:] > event[:-1]).all():  # none has more than two bytes
        delta[event] += value
        return delta
    following = np.searchsorted(event, event, "right") - np.arange(1, len(event) + 1)
    if following.max() > 2:
        return None
    np.add.at(delta, event, value << 7 * following)
    return delta


def _with_running_status(explicit: Indices, status: Bytes, size: int) -> Bytes | None:
    """Return the status of each of `size` events; None if one has none.

    Args:
        explicit: the events that have a status of their own, ascending.
        status: what it is.
    """
    is_running = np.ones(size, bool)
    is_running[explicit] = False
    is_meta = status == META
    sources, values = explicit[~is_meta], status[~is_meta]
    counts = np.diff(np.concatenate([[0], sources, [size]]))
    statuses = np.repeat(np.concatenate([_NO_STATUS, values]), counts)
    if (_has_other_size(statuses) & is_running).any():
        return None
    statuses[explicit[is_meta]] = META
    return statuses
