"""Quick reading of intact MIDI files, without a Python object for each event."""

import struct
from typing import NamedTuple

import numpy as np

from musicgen.midi.event_arrays import EventArrays, Indices, LongEvent, find_events_at_once
from musicgen.midi.events import META, SYSEX
from musicgen.midi.score import NOTE
from musicgen.midi.tracks import (
    BANK,
    DRUM_BANK,
    MAX_TRACKS,
    SUSTAIN,
    TrackContent,
    drum_part,
    has_meaning,
    length_without_end,
)

_NO_PROGRAM = -1


class _NoteEvents(NamedTuple):
    """Indices of events: of those that begin and end notes, and of beginnings without an end."""

    begin: Indices
    end: Indices
    unended: Indices


def scan_file(data: bytes) -> tuple[int, list[TrackContent]] | None:
    """Return the ticks per beat and the tracks of an intact MIDI file.

    Returns:
        None if anything is damaged or in an unusual place: `open_file` then finds out what it is.
    """
    if data[:8] != b"MThd\0\0\0\6" or len(data) < 14:
        return None
    form, count, division = struct.unpack(">HHH", data[8:14])
    chunks = _find_tracks(data)
    is_usual = form == 1 or (form == 0 and count == 1)
    if not is_usual or division not in range(1, 0x8000) or len(chunks) != count:
        return None
    if not 0 < count <= MAX_TRACKS:
        return None
    found = find_events_at_once(data, chunks)
    if found is None:
        return None
    events, long_events = found
    contents = [TrackContent() for _ in chunks]
    if not _add_long_events(contents, events, long_events):
        return None
    _add_programs(contents, events)
    note_events = _find_notes(events)
    first_note = _first_notes(events, note_events, len(contents))
    _add_banks(contents, events, first_note)
    _add_notes(contents, events, note_events, first_note, 4 * division)
    return division, contents


def _find_tracks(data: bytes) -> list[tuple[int, int]]:
    """Return where the tracks of a file begin and end; none if one is cut short."""
    tracks, start = list[tuple[int, int]](), 14
    while start + 8 <= len(data):
        end = start + 8 + int.from_bytes(data[start + 4 : start + 8], "big")
        if end > len(data):
            return []
        if data[start : start + 4] == b"MTrk":
            tracks.append((start + 8, end))
        start = end
    return tracks


def _add_long_events(
    contents: list[TrackContent], events: EventArrays, long_events: list[LongEvent]
) -> bool:
    """Add meta events and messages that select drums; return False if one has no meaning."""
    status = events.status[events.marks]
    at = events.marks[(status == META) | (status == SYSEX)]
    places = zip((events.channel[at] // 16).tolist(), events.tick[at].tolist(), strict=True)
    for (track, tick), (kind, value) in zip(places, long_events, strict=True):
        if kind is None:
            channel = drum_part(value)
            if channel is not None:
                contents[track].banks[channel, SYSEX] = DRUM_BANK
        elif has_meaning(kind, value):
            contents[track].metas.append((tick, kind, value))
        else:
            return False
    return True


def _add_programs(contents: list[TrackContent], events: EventArrays) -> None:
    at = events.programs()
    for index, program in zip(events.channel[at].tolist(), events.first[at].tolist(), strict=True):
        track, channel = divmod(index, 16)
        contents[track].first_programs.setdefault(channel, program)
        contents[track].programs[channel] = program


def _first_notes(events: EventArrays, found: _NoteEvents, num_tracks: int) -> Indices:
    """Return the index of the first note of each channel; past the events if it has none."""
    first = np.full(16 * num_tracks, len(events.tick))
    for begin in (found.begin, found.unended):
        np.minimum.at(first, events.channel.take(begin), begin)
    return first


def _add_banks(contents: list[TrackContent], events: EventArrays, first_note: Indices) -> None:
    """Add banks before the first notes of their channels, and which channels have notes."""
    for index in np.flatnonzero(first_note < len(events.tick)).tolist():
        contents[index // 16].channels.add(index % 16)
    at = events.controls(BANK)
    at = at[at < first_note[events.channel[at]]]
    for index, bank in zip(events.channel[at].tolist(), events.second[at].tolist(), strict=True):
        contents[index // 16].banks[index % 16, BANK] = bank


def _find_notes(events: EventArrays) -> _NoteEvents:
    """Find the notes of each key: of its notes that sound, an end is that of the earliest."""
    kind = events.status >> 4
    is_on = (kind == 9) & (events.second > 0)
    at = np.flatnonzero(is_on | (kind == 8) | (kind == 9))
    key = events.channel.take(at) * 128 + events.first.take(at)
    if not len(at):
        return _NoteEvents(at, at, at)
    order = np.argsort(key.astype(np.min_scalar_type(key.max())), kind="stable")
    at, key = at.take(order), key.take(order)
    on = is_on.take(at)
    balance = np.cumsum(np.where(on, 1, -1))
    last = np.append(np.flatnonzero(key[1:] != key[:-1]), len(at) - 1)
    if balance.min() >= 0 and not balance.take(last).any():  # as many ends as beginnings
        return _NoteEvents(at.take(np.flatnonzero(on)), at.take(np.flatnonzero(~on)), at[:0])
    is_new_key = np.diff(key, prepend=-1) > 0
    starts = np.flatnonzero(is_new_key)
    sizes = np.diff(starts, append=len(at))
    # Ends of keys that do not sound are left out: those that reach a new minimum of the balance.
    balance -= np.repeat(np.concatenate([[0], balance[starts[1:] - 1]]), sizes)
    step = (len(at) + 1) * np.repeat(np.arange(len(starts)), sizes)
    minimum = np.minimum.accumulate(np.minimum(balance, 0) - step) + step
    before = np.where(is_new_key, 0, np.concatenate([[0], minimum[:-1]]))
    is_end = ~on & (balance >= before)
    # In each key, the first beginnings have the ends in the same order.
    num_on = np.cumsum(on) - np.repeat(np.concatenate([[0], np.cumsum(on)[starts[1:] - 1]]), sizes)
    has_end = on & (num_on <= np.repeat(np.add.reduceat(is_end, starts, dtype=np.int64), sizes))
    return _NoteEvents(at[has_end], at[is_end], at[on & ~has_end])


def _values_at(
    at: Indices, channels: Indices, changes: Indices, values: Indices, events: EventArrays
) -> Indices:
    """Return for each of some events the value of the last change before in its channel; -1: none.

    Args:
        at: indices of events, of the channels `channels`.
        changes: indices of the changes, ascending.
        values: of the changes.
    """
    found = np.full(len(at), -1)
    channel_of_change = events.channel.take(changes)
    for channel in set(channel_of_change.tolist()):
        own = channel_of_change == channel
        edges = np.concatenate([[0], changes[own], [len(events.tick)]])
        value = np.repeat(np.append(-1, values[own]), np.diff(edges))  # of each event
        here = np.flatnonzero(channels == channel)
        found[here] = value.take(at.take(here))
    return found


def _add_notes(
    contents: list[TrackContent],
    events: EventArrays,
    found: _NoteEvents,
    first_note: Indices,
    longest: int,
) -> None:
    """Add notes by channel and program."""
    begin, end = found.begin, found.end
    length = events.tick.take(end) - events.tick.take(begin)
    if len(found.unended):
        closed = _close(contents, events, found, longest)
        begin, length = np.append(begin, found.unended), np.append(length, closed)
    channel = events.channel.take(begin)
    _count_pedalled(contents, events, end)
    changes = events.programs()
    programs = events.first.take(changes).astype(np.int64)
    in_channel = np.full(16 * len(contents), _NO_PROGRAM)
    in_channel[events.channel[changes]] = programs
    program = in_channel.take(channel)
    if (changes > first_note[events.channel[changes]]).any():
        program = _values_at(begin, channel, changes, programs, events)
    notes = np.empty(len(begin), NOTE)
    notes["onset"] = events.tick.take(begin)
    notes["duration"] = length
    notes["pitch"] = events.first.take(begin)
    notes["velocity"] = events.second.take(begin)
    part = channel * 256 + program + 1
    has_notes = np.zeros(16 * 256 * len(contents), bool)
    has_notes[part] = True
    for each in np.flatnonzero(has_notes).tolist():
        index, own = divmod(each, 256)
        key = index % 16, own - 1 if own else None
        contents[index // 16].notes[key] = notes.take(np.flatnonzero(part == each))


def _count_pedalled(contents: list[TrackContent], events: EventArrays, end: Indices) -> None:
    """Count the notes that end while the pedal of their channel is down."""
    pedals = events.controls(SUSTAIN)
    channels, channel_of_end = events.channel.take(pedals), events.channel.take(end)
    for channel in set(channels.tolist()):
        changes = pedals[channels == channel]
        ends = np.sort(end[channel_of_end == channel])
        edges = np.searchsorted(ends, changes)
        counts = np.append(edges[1:], len(ends)) - edges  # until the next change
        is_down = events.second.take(changes) >= 64
        contents[channel // 16].num_pedalled += int(counts[is_down].sum())


def _close(
    contents: list[TrackContent], events: EventArrays, found: _NoteEvents, longest: int
) -> Indices:
    """Return the lengths of the notes without an end, and count them."""
    last = events.tick[events.ends()]
    key = events.channel * 128 + events.first
    lengths = []
    for at in found.unended.tolist():
        track = events.channel[at] // 16
        contents[track].num_unended += 1
        ends = np.sort(events.tick[found.end[key[found.end] == key[at]]])
        onset = int(events.tick[at])
        lengths.append(length_without_end(onset, ends.tolist(), int(last[track]), longest))
    return np.array(lengths)
