"""The tracks of a MIDI file, event by event; damage is repaired."""

import re
import struct
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from musicgen.errors import UserError
from musicgen.midi.events import (
    DRUM_CHANNEL,
    END_OF_TRACK,
    INSTRUMENT_NAME,
    META,
    PORT,
    SYSEX,
    TRACK_NAME,
    Event,
    broken,
    find_events,
    has_meaning,
    read_text,
)
from musicgen.midi.score import NoteArray, Track, join_notes, names_drums, notes_from, sort_notes
from musicgen.text import pluralize

MAX_TRACKS = 512
"""More need gigabytes to read; an orchestra has a hundred."""

_LONGEST_WRAPPER = 1024  # bytes before the header of a file in RIFF or MacBinary
_NO_MEANING = 0x7F  # the kind of meta events of a single program
DRUM_BANK = 127
_DRUM_BANKS = (120, 126, DRUM_BANK)  # of GM2 and XG
_MELODY_BANK = 121  # of GM2; it makes channel 9 melodic
# Messages of GS and XG that make a part one of drums or, by 0, of melodies, and the channels of
# parts: of XG, then of GS.
_DRUM_PART = re.compile(
    rb"A.B\x12@([\x10-\x1f])\x15([\x00-\x02])|C.L\x08([\x00-\x0f])\x07([\x00-\x05])", re.DOTALL
)
_CHANNELS = (*range(16), DRUM_CHANNEL, *range(DRUM_CHANNEL), *range(DRUM_CHANNEL + 1, 16))

BANK, SUSTAIN, SOSTENUTO = 0, 64, 66  # controllers
SILENCES = (120, 123)  # controllers that end all notes of their channel
PEDAL_DOWN = 64  # the lowest value at which a pedal is down
LEVELS = {7: 100, 11: 127}  # controllers of volume and expression, and where they begin
WHEEL, CENTRE = -1, b"\0\x40"  # of the pitch, as if it were a controller, and where it rests

Note = tuple[int, int, int, int]
"""Onset, duration, pitch and velocity, as in `NOTE`."""
SoundingNote = tuple[Event, int | None]
"""A note-on, and the program of its channel."""
FileNote = tuple[Note, Event, Event | None]
"""A note with its note-on and note-off; None if the file has no note-off."""
ChannelProgram = tuple[int, int | None]
"""A channel and its program; None before the track changes it for the first time."""


class MidiFile(NamedTuple):
    """A repaired file.

    Attributes:
        data: the bytes of the file after the repairs.
        form: the format: 0 for a single track, 1 for any number.
        tracks: the state of each track at its end.
        others: the bytes of chunks that are not tracks.
        repairs: descriptions of the repairs.
    """

    data: bytes
    form: int
    ticks_per_beat: int
    tracks: list["TrackState"]
    others: bytes
    repairs: list[str]


@lru_cache(maxsize=16)
def open_file(data: bytes) -> MidiFile:
    """Return the tracks of a MIDI file, in which all notes have ended; they must not be changed.

    Bytes before the header are skipped, and so is the rest of a header of more than six bytes. A
    track ends at its end-of-track event, even if its length says otherwise. The number of tracks is
    counted; the header's is ignored. Damaged meta events are replaced by a kind that has no
    meaning. The last files stay in memory: a prompt and its continuations need the same events.

    Raises:
        UserError: the file has no ticks per beat, or its damage cannot be repaired.
    """
    data = data[max(0, data.find(b"MThd", 0, _LONGEST_WRAPPER)) :]
    length, form, count, division = _read_header(data)
    tracks, fixed = list[TrackState](), bytearray(data)
    others, changed = bytearray(), Counter[str]()
    at = 8 + length
    while at + 8 <= len(data):
        start, end = at, at + 8 + int.from_bytes(data[at + 4 : at + 8], "big")
        if data[at : at + 4] == b"MTrk":
            events, stop, at = _find_track(data, at + 8, end)
            changed["tracks of a wrong length, read to the end of its events"] += stop != end
            number = _remove_meaningless(events, fixed)
            changed["changes of tempo, metre or key without a meaning left out"] += number
            tracks.append(TrackState(start + 8))
            tracks[-1].read(events)
        elif end > len(data):
            break
        else:
            others += data[start:end]
            at = end
    if form > 2 or (form == 2 and len(tracks) > 1):
        what = "separate pieces (format 2)" if form == 2 else f"of an unknown format ({form})"
        raise UserError(f"its tracks are {what}; export it as format 1")
    if len(tracks) > MAX_TRACKS:
        raise UserError(f"it has {len(tracks):,} tracks, more than {MAX_TRACKS}; split it")
    form = 1 if form == 1 else int(len(tracks) > 1)
    _end_across_tracks(tracks)
    for track in tracks:
        track.end_notes(4 * division)
    repairs = [pluralize(number, nouns) for nouns, number in changed.items() if number]
    if len(tracks) != count:
        repairs.append("the header's number of tracks made right")
    return MidiFile(bytes(fixed), form, division, tracks, bytes(others), repairs)


def _read_header(data: bytes) -> tuple[int, int, int, int]:
    """Return the header's length, format, number of tracks, and ticks in a beat."""
    if not data:
        raise UserError("the file is empty; export it again from a music program")
    if data[:4] != b"MThd" or len(data) < 14:
        raise UserError("not a MIDI file (no MThd header); give a standard MIDI file")
    length, form, count, division = struct.unpack(">IHHH", data[4:14])
    if division == 0:
        raise UserError("the header says 0 ticks a beat; export it again from a music program")
    if division >> 15:
        raise UserError("its time is in frames (SMPTE), without beats; export it in ticks a beat")
    if length < 6 or 8 + length > len(data):
        raise UserError(f"broken MIDI (a header of {length} bytes); get a whole copy")
    return length, form, count, division


def _remove_meaningless(events: list[Event], data: bytearray) -> int:
    """Give meta events without a meaning another kind, in the bytes too; return their number."""
    number = 0
    for i, event in enumerate(events):
        if event.status == META and not has_meaning(*event.meta):
            data[event.start] = _NO_MEANING
            events[i] = event._replace(content=bytes([_NO_MEANING]) + event.content[1:])
            number += 1
    return number


def drum_part(content: bytes) -> tuple[int, int] | None:
    """Return the channel that a SysEx message of GS or XG makes one of drums or not, and a bank."""
    match = _DRUM_PART.search(content)
    if match is None:
        return None
    part, kind = match[1] or match[3], match[2] or match[4]
    return _CHANNELS[part[0]], DRUM_BANK if kind[0] else _MELODY_BANK


def _end_across_tracks(tracks: Sequence["TrackState"]) -> None:
    """End the notes whose ends stand in other tracks of their port and channel."""
    ends = defaultdict[tuple[int, int, int], list[int]](list)
    for track in tracks:
        for event in track.loose_ends:
            is_silence = event.status >> 4 == 0xB
            for pitch in range(128) if is_silence else event.content[:1]:
                ends[track.port, event.channel, pitch].append(event.tick)
    open_notes = defaultdict[tuple[int, int, int], list[tuple[int, int, TrackState]]](list)
    for number, track in enumerate(tracks):
        for (channel, pitch), sounding in track.sounding.items() if ends else ():
            open_notes[track.port, channel, pitch] += [(x.tick, number, track) for x, _ in sounding]
    for key, begins in open_notes.items():
        ticks = iter(sorted(ends[key]))
        for onset, _, track in sorted(begins, key=itemgetter(0, 1)):
            end = next((tick for tick in ticks if tick > onset), None)
            if end is not None:
                track.end_note(key[1], key[2], end, None)


def _find_track(data: bytes, start: int, end: int) -> tuple[list[Event], int, int]:
    """Return a track's events, where they end, and where the next chunk begins."""
    following = data.find(b"MTrk", max(start, min(end, len(data))))
    # A length may be too small: where it ends, neither a chunk nor the file's end follows.
    is_short = end < len(data) and not re.match(rb"[A-Za-z ]{4}", data[end : end + 4])
    limit = (following if following >= 0 else len(data)) if is_short else min(end, len(data))
    events = list(find_events(data, start, limit))
    if events and events[-1].message == bytes([META, END_OF_TRACK, 0]):
        stop = events[-1].stop
        another = data.find(b"MTrk", stop, max(stop, end))
        return events, stop, another if another >= 0 else min(max(stop, end), len(data))
    if end > len(data):
        place = f"{end - len(data)} bytes past the end of the file"
        raise UserError(f"cut short: a track ends {place}; get a whole copy")
    events = [event for event in events if event.start <= end]
    if events and events[-1].stop > end:
        raise broken("an event past the end of its track", events[-1].start)
    return events, end, end


class TrackState:
    """What the events of a track have set, after all of them or some.

    Attributes:
        start: offset of the track's first event in the file.
        tick: tick of the last event.
        port: of the channels: each port has 16 of its own.
        events: the events, without the end-of-track event.
        metas: tick, kind and value of each of the meta events.
        programs: the last program of each channel.
        first_programs: the first program of each channel.
        banks: the bank of each channel before its first note, by channel and `BANK`; a bank of
            drums or melodies that a SysEx message selects, by channel and `SYSEX`.
        struck: the last onset of each channel.
        held: the last event of each pedal and pitch wheel that is not at rest, by channel and
            controller.
        levels: tick and value of each change of volume and expression, by channel and controller.
        sounding: notes that have not ended, by channel and pitch.
        loose_ends: note-offs that ended no note, and controllers that end all notes.
        played: notes with their events, by channel and program.
        notes: sorted `NOTE` arrays by channel and program, after `end_notes`.
        num_unended: number of notes without a note-off; `end_notes` gives them an end.
        num_pedalled: number of notes that end while the sustain pedal is down.
    """

    def __init__(self, start: int = 0) -> None:
        self.start = start
        self.tick = self.port = 0
        self.events: list[Event] = []
        self.metas: list[tuple[int, int, bytes]] = []
        self.programs: dict[int, int] = {}
        self.first_programs: dict[int, int] = {}
        self.banks: dict[tuple[int, int], int] = {}
        self.struck: dict[int, int] = {}
        self.held: dict[tuple[int, int], Event] = {}
        self.levels: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        self.sounding: defaultdict[tuple[int, int], list[SoundingNote]] = defaultdict(list)
        self.loose_ends: list[Event] = []
        self.played: defaultdict[ChannelProgram, list[FileNote]] = defaultdict(list)
        self.notes: dict[ChannelProgram, NoteArray] = {}
        self.num_unended = self.num_pedalled = 0

    @property
    def name(self) -> str:
        """The track's last name; empty if it has several instruments: then it is a title."""
        instruments = {(x == DRUM_CHANNEL, self.programs.get(x)) for x in self.struck}
        names = {kind: text for _, kind, text in self.metas}  # the last of each kind
        name = names.get(TRACK_NAME) or names.get(INSTRUMENT_NAME, b"")
        return read_text(name) if name and len(instruments) < 2 else ""

    def read(self, events: Iterable[Event]) -> None:
        """Update the state by the next events."""
        for event in events:
            self.tick = event.tick
            kind, content = event.status >> 4, event.content
            if event.status == META:
                if content[0] == END_OF_TRACK:
                    break
                kind, value = event.meta
                self.metas.append((event.tick, kind, value))
                if kind == PORT and value:
                    self.port = value[0]
            elif kind == 9 and content[1]:
                channel = event.channel
                self.struck[channel] = event.tick
                self.sounding[channel, content[0]].append((event, self.programs.get(channel)))
            elif kind in (8, 9):
                if not self.end_note(event.channel, content[0], event.tick, event):
                    self.loose_ends.append(event)
            else:
                self._read_setting(kind, event)
            self.events.append(event)

    def end_note(self, channel: int, pitch: int, tick: int, event: Event | None) -> bool:
        """End the oldest sounding note of a key; return whether there is one.

        Args:
            event: its note-off; None: something else ends it.
        """
        sounding = self.sounding.get((channel, pitch))
        if not sounding:
            return False
        begin, program = sounding.pop(0)
        note = begin.tick, tick - begin.tick, pitch, begin.content[1]
        self.played[channel, program].append((note, begin, event))
        self.num_pedalled += (channel, SUSTAIN) in self.held
        return True

    def _silence(self, event: Event) -> None:
        """End all notes of the event's channel that began before it."""
        for (channel, pitch), sounding in self.sounding.items():
            if channel == event.channel:
                for _ in range(sum(begin.tick < event.tick for begin, _ in sounding)):
                    self.end_note(channel, pitch, event.tick, None)
        self.loose_ends.append(event)

    def _read_setting(self, kind: int, event: Event) -> None:
        """Take note of a change of program, a controller, a pitch bend or a SysEx message."""
        channel, content = event.channel, event.content
        if kind == 0xC:
            self.first_programs.setdefault(channel, content[0])
            self.programs[channel] = content[0]
        elif kind == 0xB and content[0] in LEVELS:
            self.levels[channel, content[0]].append((event.tick, content[1]))
        elif kind == 0xB and content[0] in (SUSTAIN, SOSTENUTO):
            self._hold((channel, content[0]), event, content[1] >= PEDAL_DOWN)
        elif kind == 0xB and content[0] == BANK and channel not in self.struck:
            self.banks[channel, BANK] = content[1]
        elif kind == 0xB and content[0] in SILENCES:
            self._silence(event)
        elif kind == 0xE:
            self._hold((channel, WHEEL), event, content != CENTRE)
        elif event.status == SYSEX and (part := drum_part(content)) is not None:
            self.banks[part[0], SYSEX] = part[1]

    def _hold(self, key: tuple[int, int], event: Event, is_held: bool) -> None:
        self.held.pop(key, None)
        if is_held:
            self.held[key] = event

    def notes_of(self, channel: int) -> list[Note]:
        """Return the notes in `played` of a channel."""
        parts = [notes for (c, _), notes in self.played.items() if c == channel]
        return [note for notes in parts for note, _, _ in notes]

    def end_notes(self, longest: int) -> None:
        """End the notes that have no note-off, and add all notes to `notes`.

        Args:
            longest: see `length_without_end`.
        """
        for (channel, pitch), sounding in self.sounding.items():
            if not sounding:
                continue
            played = self.notes_of(channel)
            ends = sorted(onset + length for onset, length, key, _ in played if key == pitch)
            for begin, program in sounding:
                length = length_without_end(begin.tick, ends, self.tick, longest)
                note = begin.tick, length, pitch, begin.content[1]
                self.played[channel, program].append((note, begin, None))
            self.num_unended += len(sounding)
        for key, notes in self.played.items():
            self.notes[key] = notes_from(note for note, _, _ in notes)


def length_without_end(onset: int, ends: Sequence[int], last: int, longest: int) -> int:
    """Return the duration of a note that has no note-off, in ticks.

    It lasts until the next note of its channel and pitch ends. If none does, it lasts until the end
    of the track, but at most `longest` ticks.

    Args:
        ends: ticks at which notes of the same channel and pitch end, sorted.
        last: tick at which the track ends.
    """
    following = bisect_right(ends, onset)
    if following < len(ends):
        return ends[following] - onset
    return min(max(1, last - onset), longest)


def drum_channels(tracks: Sequence[TrackState]) -> set[tuple[int, int]]:
    """Return the ports and channels of drums: 9, and those whose first notes have a drum bank.

    Channel 9 is melodic if its first notes have GM2's bank of melodies, or a message says so.
    """
    banks = [(track.port, c, bank) for track in tracks for (c, _), bank in track.banks.items()]
    drums = {(port, channel) for port, channel, bank in banks if bank in _DRUM_BANKS}
    ports = {track.port for track in tracks}
    melodies = {port for port in ports if (port, DRUM_CHANNEL, _MELODY_BANK) in banks}
    return drums | {(port, DRUM_CHANNEL) for port in ports - melodies}


def file_parts(tracks: Sequence[TrackState]) -> Iterator[tuple[int, list[ChannelProgram], Track]]:
    """Yield the tracks of a `Score`: one per channel and program of each track of the file.

    Each comes with the index of its track in the file, and with its keys in `TrackState.notes`.
    """
    programs = {
        (track.port, channel): program
        for track in tracks[::-1]
        for channel, program in track.first_programs.items()
    }
    drums = drum_channels(tracks)
    for number, track in enumerate(tracks):
        name, port = track.name, track.port
        parts: defaultdict[tuple[int, int, bool], list[ChannelProgram]] = defaultdict(list)
        for channel, own in track.notes:
            program = own
            if program is None:  # a later change in the track does not count before it
                program = 0 if channel in track.programs else programs.get((port, channel), 0)
            is_drum = (port, channel) in drums
            parts[DRUM_CHANNEL if is_drum else channel, program, is_drum].append((channel, own))
        for (_, program, has_drum_channel), keys in sorted(parts.items()):
            is_drum = has_drum_channel or names_drums(name, program)
            notes = track.notes[keys[0]]
            if len(keys) > 1:
                notes = sort_notes(join_notes(track.notes[key] for key in keys))
            yield number, keys, Track(name, program, is_drum, notes)
