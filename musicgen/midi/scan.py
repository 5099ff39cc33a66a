"""Quick reading of intact MIDI files, without a Python object per event.

symusic reads notes faster, but neither notes without an end nor whether a pedal changes before or
after a note ends in the same tick: every second file of POP909 and one in twenty of MMA has such a
place, and `open_file` takes ten times as long for it as this module.
"""

import struct
from itertools import pairwise

import numpy as np

from musicgen.midi.events import (
    END_OF_TRACK,
    PORT,
    SYSEX,
    Bytes,
    EventArrays,
    find_events_at_once,
    has_meaning,
)
from musicgen.midi.score import NOTE, IntArray, NoteArray, sort_notes
from musicgen.midi.tracks import (
    BANK,
    MAX_TRACKS,
    PEDAL_DOWN,
    SILENCES,
    SUSTAIN,
    MidiFile,
    TrackState,
    drum_part,
    length_without_end,
)

_NO_PROGRAM = -1  # before the first change
# A number that sorts events by key (channel and pitch) has the index of the event in its low bits.
_INDEX_BITS = 32
_MOST_SILENCES = 100  # most files have one or two for each channel
_INDEX = (1 << _INDEX_BITS) - 1


def scan_file(data: bytes) -> MidiFile | None:
    """Return an intact MIDI file as `open_file` does, with tracks that have no events.

    Returns:
        None if anything is damaged or in an unusual place: `open_file` then finds out what it is.
    """
    if data[:8] != b"MThd\0\0\0\6" or len(data) < 14:
        return None
    form, count, division = struct.unpack(">HHH", data[8:14])
    chunks = _find_tracks(data)
    is_usual = form == 1 or (form == 0 and count == 1)
    if not is_usual or not 0 < division < 0x8000 or not 0 < len(chunks) == count <= MAX_TRACKS:
        return None
    events = find_events_at_once(data, chunks)
    if events is None:
        return None
    tracks = [TrackState(start) for start, _ in chunks]
    if not _add_long_events(tracks, events):
        return None
    changes = (events.kind == 0xC0).nonzero()[0]
    changed, programs = events.channel.take(changes).tolist(), events.first.take(changes).tolist()
    for channel, program in zip(changed, programs, strict=True):
        tracks[channel // 16].first_programs.setdefault(channel % 16, program)
        tracks[channel // 16].programs[channel % 16] = program
    begin, end, unended = _find_notes(events)
    controllers = (events.kind == 0xB0).nonzero()[0]
    numbers = events.first.take(controllers)
    silences = controllers[(numbers == SILENCES[0]) | (numbers == SILENCES[1])]
    if _ends_elsewhere(events, begin, end, len(unended), silences):
        return None
    duration = events.tick.take(end) - events.tick.take(begin)
    if len(unended):
        begin, duration = _with_unended(tracks, events, begin, end, unended, 4 * division)
    first_note = _add_notes(tracks, events, changes, begin, duration) if len(begin) else {}
    banks = controllers[numbers == BANK]  # those before the first notes of their channels count
    for index, channel, bank in zip(
        banks.tolist(), events.channel[banks].tolist(), events.second[banks].tolist(), strict=True
    ):
        if index < first_note.get(channel, len(events.tick)):
            tracks[channel // 16].banks[channel % 16, BANK] = bank
    _count_pedalled(tracks, events, controllers[numbers == SUSTAIN], end)
    return MidiFile(data, form, division, tracks, b"", [])


def _find_tracks(data: bytes) -> list[tuple[int, int]]:
    """Return where the tracks of a file begin and end; an empty list if one is cut short."""
    tracks, start = list[tuple[int, int]](), 14
    while start + 8 <= len(data):
        end = start + 8 + int.from_bytes(data[start + 4 : start + 8], "big")
        if end > len(data):
            return []
        if data[start : start + 4] == b"MTrk":
            tracks.append((start + 8, end))
        start = end
    return tracks


def _add_long_events(tracks: list[TrackState], events: EventArrays) -> bool:
    """Add meta events and messages that select drums; return False if one has no meaning."""
    ticks = events.tick.take([index for index, *_ in events.long_events]).tolist()
    for tick, (_, track, kind, value) in zip(ticks, events.long_events, strict=True):
        if kind is None:
            part = drum_part(value)
            if part is not None:
                tracks[track].banks[part[0], SYSEX] = part[1]
        elif has_meaning(kind, value) and kind != END_OF_TRACK:  # a longer one than usual
            tracks[track].metas.append((tick, kind, value))
            if kind == PORT and value:
                tracks[track].port = value[0]
        else:
            return False
    return True


def _find_notes(events: EventArrays) -> tuple[IntArray, IntArray, IntArray]:
    """Find the notes of each channel and pitch; an end is that of the note that began first.

    Returns:
        Indices of the events that begin notes and of those that end them, and of beginnings without
        an end.
    """
    is_on = (events.kind == 0x90) & (events.second > 0)
    is_end = (events.kind < 0xA0) ^ is_on
    numbers = (_keys(events) << _INDEX_BITS) + np.arange(len(is_on))
    begin = numbers.take(is_on.nonzero()[0])
    end = numbers.take(is_end.nonzero()[0])
    begin.sort()
    end.sort()
    # As a rule the first beginning of a key has the first end, the second the second, and so on.
    if len(begin) == len(end):
        have_same_key = begin >> _INDEX_BITS == end >> _INDEX_BITS
        if (have_same_key & (begin < end)).all():
            return begin & _INDEX, end & _INDEX, begin[:0]
    key, key_of_end = begin >> _INDEX_BITS, end >> _INDEX_BITS
    rank = np.arange(len(begin)) - key.searchsorted(key)
    rank_of_end = np.arange(len(end)) - key_of_end.searchsorted(key_of_end)
    # An end that comes when no note of its key sounds is left out: with it there are more ends than
    # beginnings before it, by more than at any earlier end of the key.
    excess = rank_of_end + 1 - (begin.searchsorted(end) - key.searchsorted(key_of_end))
    step = (len(end) + 1) * key_of_end
    most = np.maximum.accumulate(np.maximum(excess, 0) + step) - step
    before = np.where(rank_of_end > 0, np.append(0, most[:-1]), 0)
    end, key_of_end = end[most == before], key_of_end[most == before]
    num_ends = key_of_end.searchsorted(key, "right") - key_of_end.searchsorted(key)
    return begin[rank < num_ends] & _INDEX, end & _INDEX, begin[rank >= num_ends] & _INDEX


def _ends_elsewhere(
    events: EventArrays, begin: IntArray, end: IntArray, num_unended: int, silences: IntArray
) -> bool:
    """Return whether a note ends by a controller, or may end by an event of another track.

    Args:
        begin: indices of the events that begin notes, and `end` of those that end them.
        silences: indices of controllers that end all notes of their channel.
    """
    if num_unended:
        is_end = (events.kind == 0x80) | ((events.kind == 0x90) & (events.second == 0))
        return len(silences) > 0 or int(is_end.sum()) > len(end)
    if len(silences) > _MOST_SILENCES:
        return True
    channel, onset = events.channel.take(begin), events.tick.take(begin)
    return any(
        (
            (channel == events.channel[at]) & (onset < events.tick[at]) & (at > begin) & (at < end)
        ).any()
        for at in silences
    )


def _keys(events: EventArrays) -> IntArray:
    """Return the channel and pitch of each event, as one number."""
    return events.channel * 128 + events.first


def _with_unended(
    tracks: list[TrackState],
    events: EventArrays,
    begin: IntArray,
    end: IntArray,
    unended: IntArray,
    longest: int,
) -> tuple[IntArray, IntArray]:
    """Return the beginnings and durations of all notes, channel after channel.

    Notes without an end get one, and are counted.
    """
    last = events.tick[events.ends]
    key = _keys(events)
    closed = []
    for at in unended.tolist():
        track = events.channel[at] // 16
        tracks[track].num_unended += 1
        ends = np.sort(events.tick[end[key[end] == key[at]]])
        onset = int(events.tick[at])
        closed.append(length_without_end(onset, ends.tolist(), int(last[track]), longest))
    duration = np.append(events.tick[end] - events.tick[begin], closed)
    begin = np.append(begin, unended)
    order = np.argsort(events.channel.take(begin), kind="stable")
    return begin.take(order), duration.take(order)


def _add_notes(
    tracks: list[TrackState],
    events: EventArrays,
    changes: IntArray,
    begin: IntArray,
    duration: IntArray,
) -> dict[int, int]:
    """Add notes by channel and program; return the index of the first note of each channel.

    Args:
        changes: indices of the changes of program.
        begin: indices of the events that begin the notes, channel after channel.
        duration: of the notes, in ticks.
    """
    channel = events.channel.take(begin)
    starts = _starts(channel)
    channels = channel.take(starts).tolist()
    first_note = dict(zip(channels, np.minimum.reduceat(begin, starts).tolist(), strict=True))
    changed = events.channel.take(changes).tolist()
    places = zip(changed, changes.tolist(), strict=True)
    if not any(at > first_note.get(each, at) for each, at in places):
        programs = [tracks[each // 16].programs.get(each % 16, _NO_PROGRAM) for each in channels]
    else:  # amid notes
        program = _programs_at(begin, changes, events)
        order = np.lexsort((program, channel))
        begin, duration, program = begin.take(order), duration.take(order), program.take(order)
        starts = _starts(channel * 256 + program)
        channels, programs = channel.take(starts).tolist(), program.take(starts).tolist()
    pitch, velocity = events.first.take(begin), events.second.take(begin)
    notes = _sorted_parts(events.tick.take(begin), pitch, duration, velocity, starts)
    for each, program, part in zip(channels, programs, notes, strict=True):
        track, own, last_onset = tracks[each // 16], each % 16, int(part["onset"][-1])
        track.struck[own] = max(last_onset, track.struck.get(own, 0))
        track.notes[own, None if program == _NO_PROGRAM else program] = part
    return first_note


def _programs_at(at: IntArray, changes: IntArray, events: EventArrays) -> IntArray:
    """Return the program of each event's channel, `_NO_PROGRAM` before its first change.

    Args:
        at: indices of the events.
        changes: indices of the changes of program.
    """
    # A place sorts events by channel, then by time; the first place is before all of them.
    channel, size = events.channel, len(events.tick)
    places = channel.take(changes) * size + changes
    order = places.argsort()
    places = np.append(-1, places.take(order))
    programs = np.append(_NO_PROGRAM, events.first.take(changes.take(order)).astype(np.int64))
    last = places.searchsorted(channel.take(at) * size + at) - 1
    is_same_channel = places.take(last) // size == channel.take(at)
    return np.where(is_same_channel, programs.take(last), _NO_PROGRAM)


def _starts(parts: IntArray) -> IntArray:
    """Return the indices at which another part begins."""
    return np.append(0, (parts[1:] != parts[:-1]).nonzero()[0] + 1)


def _sorted_parts(
    onset: IntArray, pitch: Bytes, duration: IntArray, velocity: Bytes, starts: IntArray
) -> list[NoteArray]:
    """Return the notes of each part, sorted as `sort_notes` does.

    Where the four values of a note fit into one number, these numbers are sorted, which is quicker.

    Args:
        starts: the index of the first note of each part.
    """
    spans = [slice(start, stop) for start, stop in pairwise([*starts.tolist(), len(onset)])]
    notes = np.empty(len(onset), NOTE)
    bits = int(duration.max()).bit_length()
    if int(onset.max()).bit_length() + 7 + bits + 7 > 63:
        notes["onset"], notes["duration"] = onset, duration
        notes["pitch"], notes["velocity"] = pitch, velocity
        return [sort_notes(notes[span]) for span in spans]
    numbers = (onset << 7) + pitch
    numbers = ((numbers << bits) + duration << 7) + velocity
    for span in spans:
        numbers[span].sort()
    notes["velocity"] = numbers & 0x7F
    numbers >>= 7
    notes["duration"] = numbers & (1 << bits) - 1
    numbers >>= bits
    notes["pitch"] = numbers & 0x7F
    notes["onset"] = numbers >> 7
    return [notes[span] for span in spans]


def _count_pedalled(
    tracks: list[TrackState], events: EventArrays, pedals: IntArray, end: IntArray
) -> None:
    """Count the notes that end while the pedal of their channel is down."""
    channels = events.channel.take(pedals)
    is_end = np.zeros(len(events.tick), bool)
    is_end[end] = True
    for channel in set(channels.tolist()):
        changes = pedals[channels == channel]
        ends = (is_end & (events.channel == channel)).nonzero()[0]
        places = ends.searchsorted(changes)
        until_next = np.append(places[1:], len(ends)) - places
        is_down = events.second.take(changes) >= PEDAL_DOWN
        tracks[channel // 16].num_pedalled += int(until_next[is_down].sum())
