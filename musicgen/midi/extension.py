"""Music appended to a MIDI file whose own events stay as they are, byte by byte."""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import itemgetter
from typing import Self

import numpy as np

from musicgen.errors import UserError
from musicgen.midi.events import (
    DRUM_CHANNEL,
    END_OF_TRACK,
    MARKER,
    META,
    TEMPO_CHANGE,
    TIME_SIGNATURE,
    TRACK_NAME,
    number_bytes,
)
from musicgen.midi.io import SLOWEST
from musicgen.midi.part_sharing import UNISON, share_notes
from musicgen.midi.score import NOTE, IntArray, Score, Track, names_drums
from musicgen.midi.tracks import (
    CENTRE,
    LEVELS,
    PEDAL_DOWN,
    SUSTAIN,
    WHEEL,
    MidiFile,
    Note,
    TrackState,
    drum_channels,
    open_file,
)

MIN_TICKS_PER_BEAT = 24
"""Coarser files cannot hold the rhythms of a continuation."""

OFF, OTHER, ON = range(3)  # the order of events at one tick
_LONGEST_DELTA = 2**28 - 1  # a longer delta time has no bytes

TimedEvent = tuple[int, int, bytes]
"""Tick of an event, its order at that tick, and its bytes with their status."""
PedalBar = tuple[int, int, int, int]
"""Ticks at which a new bar begins and ends, and an earlier bar whose pedal it repeats."""


class FileTrack(TrackState):
    """A track to write: its state up to the end of the kept music, and added events.

    Attributes:
        whole: the state of the same track at its end; a new track has no events.
        kept: bytes of the events before the end, unchanged.
        end_of_track: its tick, in the file.
        after: the added events.
    """

    def __init__(self, end_of_track: int = 0) -> None:
        super().__init__()
        self.whole = TrackState()
        self.kept = b""
        self.end_of_track = end_of_track
        self.after: list[TimedEvent] = []

    @classmethod
    def of(cls, track: Track, channel: int, tick: int = 0) -> Self:
        """Return a track without notes, whose program begins at a tick."""
        new = cls()
        new.add_meta(0, TRACK_NAME, track.name.encode())
        if not track.is_drum:
            new.add(tick, OTHER, (0xC0 | channel, track.program))
        return new

    def add(self, tick: int, order: int, event: Iterable[int]) -> None:
        self.after.append((tick, order, bytes(event)))

    def add_meta(self, tick: int, kind: int, value: bytes) -> None:
        self.add(tick, OTHER, (META, kind, *number_bytes(len(value)), *value))

    def add_changes(self, score: Score) -> None:
        """Add the time signatures, tempi and markers of a score."""
        for tick, numerator, denominator in score.time_signatures:
            value = bytes([numerator, denominator.bit_length() - 1, 24, 8])
            self.add_meta(tick, TIME_SIGNATURE, value)
        for tick, bpm in score.tempos.tolist():
            microseconds = int(60e6 / max(bpm, SLOWEST) + 0.5)
            self.add_meta(tick, TEMPO_CHANGE, microseconds.to_bytes(3, "big"))
        for marker in score.markers:
            self.add_meta(marker.tick, MARKER, marker.text.encode())

    def add_notes(self, channel: int, notes: Iterable[Note]) -> None:
        for onset, duration, pitch, velocity in notes:
            self.add(onset, ON, (0x90 | channel, pitch, max(1, velocity)))
            self.add(onset + duration, OFF, (0x80 | channel, pitch, 64))

    def chunk(self) -> bytes:
        body, last_tick = bytearray(self.kept), self.tick
        ordered = sorted(self.after, key=itemgetter(0, 1))
        # The end-of-track event keeps its tick, unless that was cut off.
        end = max([self.end_of_track, last_tick, *(tick for tick, _, _ in ordered[-1:])])
        for tick, _, event in [*ordered, (end, ON, bytes([META, END_OF_TRACK, 0]))]:
            body += number_bytes(min(tick - last_tick, _LONGEST_DELTA)) + event
            last_tick = tick
        return b"MTrk" + len(body).to_bytes(4, "big") + body


_Part = tuple[FileTrack, int]
"""A track of the file and a channel, whose notes are a part."""


def extend(
    data: bytes,
    end: int,
    music: Score,
    find_tracks: Callable[[Sequence[Track]], list[int | None]],
    *,
    whole: bool,
    sustain: int,
    programs: Mapping[int, int] | None = None,
    pedal_bars: Sequence[PedalBar] = (),
    cut: int | None = None,
) -> bytes:
    """Return a MIDI file that begins like `data` and continues with `music` from tick `end`.

    - All events before `end` keep their bytes and their tracks.
    - Notes that sound at `end` keep their length for `sustain` ticks at most, and end earlier if
      `music` strikes them again. Notes without a note-off, pedals and pitch bends end at `end`.
    - Volume and expression return to the values that the last note before `end` had.
    - New notes go to the part (track and channel) that has their role; `share_notes` chooses from
      several. Without one they go to a new track on a free channel: format 0 becomes format 1.

    Args:
        music: from tick 0 on, in any resolution; its tempi and metres are changes.
        find_tracks: returns the index of the track of `music` with the role of each part, or None.
        whole: keep the file's events from `end` on, too; without it, they are left out.
        sustain: ticks for which notes may sound on from `end`.
        programs: General MIDI programs of tracks of `music`, by index, which their parts of the
            file change to at `end`.
        pedal_bars: bars of `music`, and the bars of the file whose sustain pedal they repeat.
        cut: tick before `end` from which events are left out, such as notes that are played early.

    Raises:
        UserError: the file cannot be extended: says why.
    """
    file = open_file(data)
    if file.ticks_per_beat < MIN_TICKS_PER_BEAT:
        raise UserError(f"it has fewer than {MIN_TICKS_PER_BEAT} ticks in a beat")
    cut = end if cut is None else cut
    file_tracks = [_begin(file.data, state, cut, whole) for state in file.tracks]

    beat = music.ticks_per_beat

    def move(ticks: IntArray) -> IntArray:  # halves round up
        return end + (2 * ticks * file.ticks_per_beat + beat) // (2 * beat)

    music = replace(music.moved(move), ticks_per_beat=file.ticks_per_beat)
    near = file.ticks_per_beat * UNISON
    placed = _place(music.tracks, file_tracks, find_tracks, end, programs or {}, near)
    struck = _first_onsets(placed)
    for file_track in file_tracks:
        _go_on(file_track, (cut, end), whole, sustain, struck)
    _restore_levels(file_tracks, end)
    bars = np.array(pedal_bars, np.int64).reshape(-1, 4)
    bars[:, :2] = move(bars[:, :2])
    _play(placed, bars.tolist())
    file_tracks[0].add_changes(music)
    added = [file_track for _, (file_track, _) in placed if file_track not in file_tracks]
    return as_file(file, [*file_tracks, *added])


def at_rest(channel: int, control: int) -> tuple[int, ...]:
    """Return the event that releases a pedal or centres the wheel."""
    return (0xE0 | channel, *CENTRE) if control == WHEEL else (0xB0 | channel, control, 0)


def as_file(file: MidiFile, tracks: Sequence[FileTrack]) -> bytes:
    """Return a file with other tracks; one of format 0 with several becomes one of format 1."""
    form = file.form if len(tracks) == len(file.tracks) else 1
    header = struct.pack(">IHHH", 6, form, len(tracks), file.ticks_per_beat)
    return b"".join([b"MThd", header, *(track.chunk() for track in tracks), file.others])


def _begin(data: bytes, state: TrackState, end: int, whole: bool) -> FileTrack:
    """Return a track of a file with its events before tick `end`; for `whole` see `extend`."""
    track = FileTrack(state.tick if whole or state.tick < end else 0)
    track.whole = state
    track.read(event for event in state.events if event.tick < end)
    if track.events:
        track.kept = data[state.start : track.events[-1].stop]
    if whole:
        track.held, track.levels = state.held, state.levels
    return track


def _first_onsets(placed: Sequence[tuple[Track, _Part]]) -> dict[tuple[int, int], int]:
    """Return the tick at which each pitch of each channel is struck for the first time."""
    struck: dict[tuple[int, int], int] = {}
    for track, (_, channel) in placed:
        for onset, _, pitch, _ in track.notes.tolist():
            struck[channel, pitch] = min(onset, struck.get((channel, pitch), onset))
    return struck


def _go_on(
    track: FileTrack,
    edges: tuple[int, int],  # `cut` and `end`
    whole: bool,
    sustain: int,
    struck: Mapping[tuple[int, int], int],
) -> None:
    """Add what follows of a track: ends of notes, pedals, wheels; all events of a whole one."""
    cut, end = edges
    notes = [*chain.from_iterable(track.whole.played.values())]
    ends = {note_off for _, note_on, note_off in notes if note_on.tick < cut}
    for event in track.whole.events[len(track.events) :]:
        if event in ends:
            latest = struck.get((event.channel, event.content[0]), event.tick)
            track.add(min(event.tick, end + sustain, latest), OFF, event.message)
        elif whole:
            track.add(event.tick, OFF, event.message)
    unended = {note_on for note_on, _ in chain.from_iterable(track.whole.sounding.values())}
    for (onset, duration, pitch, _), note_on, note_off in notes:
        if note_off is None and onset < cut and (note_on in unended or onset + duration >= cut):
            latest = struck.get((note_on.channel, pitch), onset + duration)
            note_end = min(onset + duration, end + sustain, latest)
            note_end = end if note_on in unended else note_end
            track.add(note_end, OFF, (0x80 | note_on.channel, pitch, 64))
    for (channel, control), held in track.held.items():
        track.add(max(end, held.tick), OFF, at_rest(channel, control))


def _restore_levels(file_tracks: Sequence[FileTrack], end: int) -> None:
    """Restore the last audible volume and expression of each channel."""
    for track in file_tracks:
        for (channel, control), changes in track.levels.items():
            last = max(each.struck.get(channel, -1) for each in file_tracks)
            before = [(0, LEVELS[control]), *changes]
            heard = [value for tick, value in before if tick <= last and value]
            if heard and heard[-1] != changes[-1][1]:
                track.add(max(end, changes[-1][0]), OFF, (0xB0 | channel, control, heard[-1]))


def _play(placed: Sequence[tuple[Track, _Part]], pedal_bars: Sequence[Sequence[int]]) -> None:
    """Add the notes of tracks to their parts, with the sustain pedal of earlier bars."""
    for file_track, channel in dict.fromkeys(part for _, part in placed):
        for tick, value in repeat_pedal(file_track, channel, pedal_bars):
            file_track.add(tick, OTHER, (0xB0 | channel, SUSTAIN, value))
    for track, (file_track, channel) in placed:
        file_track.add_notes(channel, track.notes.tolist())


def repeat_pedal(
    state: TrackState, channel: int, bars: Sequence[Sequence[int]]
) -> list[tuple[int, int]]:
    """Return the tick and the value of each event of the sustain pedal in new bars.

    The pedal is up before them, and after them.

    Args:
        state: of a track, up to the new bars.
        channel: of the part in the track.
        bars: four ticks each, see `PedalBar`.
    """
    changes = [
        (event.tick, event.content[1])
        for event in state.events
        if event.status == 0xB0 | channel and event.content[0] == SUSTAIN
    ]
    repeated: list[tuple[int, int]] = []
    is_down = False
    for begin, end, model_begin, model_end in bars:
        before = [0, *(value for tick, value in changes if tick < model_begin)][-1]
        shift = begin - model_begin
        stop = min(model_end, end - shift)
        inside = [(tick + shift, value) for tick, value in changes if model_begin <= tick < stop]
        if is_down != (before >= PEDAL_DOWN):
            inside.insert(0, (begin, before))
        repeated += inside
        if inside:
            is_down = inside[-1][1] >= PEDAL_DOWN
    if is_down:
        repeated.append((end, 0))
    return repeated


def _place(
    tracks: Sequence[Track],
    file_tracks: Sequence[FileTrack],
    find_tracks: Callable[[Sequence[Track]], list[int | None]],
    end: int,
    new_programs: Mapping[int, int],
    near: float,
) -> list[tuple[Track, _Part]]:
    """Return the tracks that have notes, with the parts that the notes are added to."""
    programs = {(t.whole.port, c): p for t in file_tracks for c, p in t.programs.items()}
    parts = _parts_by_role(file_tracks, find_tracks, programs)
    found = {
        index: some
        for index, track in enumerate(tracks)
        if (some := _parts_of(track, parts.get(index, ())))
    }
    played = {channel for some in found.values() for _, channel in some}
    used = {c for _, c in programs} | {c for some in parts.values() for _, c in some}
    # After the end nothing else plays on the used ones, so that a program may change there.
    free = [c for c in range(16) if c not in {DRUM_CHANNEL, *played}]
    free.sort(key=used.__contains__)
    placed = []
    for index, track in enumerate(tracks):
        if not len(track.notes):
            continue
        if index not in found:
            if not (track.is_drum or free):
                raise UserError("it leaves too few MIDI channels for the continuation")
            channel = DRUM_CHANNEL if track.is_drum else free.pop(0)
            new = FileTrack.of(track, channel, end if channel in used else 0)
            found[index] = [(new, channel)]
        elif index in new_programs:
            for file_track, channel in found[index]:
                file_track.add(end, OTHER, (0xC0 | channel, new_programs[index]))
        known = [np.array(each.notes_of(channel), NOTE) for each, channel in found[index]]
        for part, notes in zip(found[index], share_notes(track.notes, known, near), strict=True):
            placed.append((replace(track, notes=notes), part))
    return placed


def _parts_by_role(
    file_tracks: Sequence[FileTrack],
    find_tracks: Callable[[Sequence[Track]], list[int | None]],
    programs: Mapping[tuple[int, int], int],
) -> dict[int | None, list[_Part]]:
    """Return the parts of a file by the track of the music that has their role; None: no track."""
    drums = drum_channels([track.whole for track in file_tracks])
    parts: list[_Part] = []
    tracks = []
    for file_track in file_tracks:
        name, port = file_track.whole.name, file_track.whole.port
        for channel in sorted(file_track.whole.struck):
            program = file_track.programs.get(channel, programs.get((port, channel), 0))
            is_drum = (port, channel) in drums or names_drums(name, program)
            parts.append((file_track, channel))
            tracks.append(
                Track(name, program, is_drum, np.array(file_track.notes_of(channel), NOTE))
            )
    by_role: dict[int | None, list[_Part]] = {}
    for role, part in zip(find_tracks(tracks), parts, strict=True):
        by_role.setdefault(role, []).append(part)
    return by_role


def _parts_of(track: Track, parts: Sequence[_Part]) -> Sequence[_Part]:
    """Return the parts of a track's role that its notes go to; () if that is not clear.

    These are all that have played before the end, else the only one of its name or of its role.
    """
    playing = [(each, channel) for each, channel in parts if each.notes_of(channel)]
    if playing:
        return playing
    name = track.name.lower()
    named = [part for part in parts if part[0].name.strip().lower() == name]
    matches = named or parts
    return matches if len(matches) == 1 else ()
