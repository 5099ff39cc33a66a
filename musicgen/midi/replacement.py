"""Replace the notes of a MIDI file; all other events stay."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain

from musicgen.errors import UserError
from musicgen.midi.events import DRUM_CHANNEL, MARKER, META, Event, read_text
from musicgen.midi.extension import OFF, ON, OTHER, FileTrack, as_file, at_rest
from musicgen.midi.io import open_events
from musicgen.midi.score import Marker, Score, Track
from musicgen.midi.tracks import (
    WHEEL,
    ChannelProgram,
    MidiFile,
    Note,
    TrackState,
    file_parts,
)


def replace_notes(
    data: bytes, old: Score, new: Score, span: tuple[int, float], keeps_pedal: bool = False
) -> bytes:
    """Return a MIDI file with the notes and the markers of `new` in place of those of `old`.

    All other events stay. Pedals and bends belong to the notes that are removed, so within `span`
    they are released on the channels whose notes change, but for pedals with `keeps_pedal`. Notes
    without an end get one.

    Args:
        old: the score of the file.
        new: the same tracks with other notes, and then new tracks.
        span: ticks [first, end) of the notes that change.
        keeps_pedal: whether pedals stay as they are.

    Raises:
        UserError: there are too few channels for the new tracks.
    """
    file = open_events(data)
    replacement = _Replacement(file, keeps_pedal)
    parts = file_parts([state.content for state in file.tracks])
    for i, track in enumerate(new.tracks):
        if i < len(old.tracks) and len(old.tracks[i].notes):
            number, keys, part = next(parts)
            replacement.replace_part(file.tracks[number], keys, part, track)
        elif len(track.notes):
            replacement.add_track(track)
    found = set[Marker]()
    for state in file.tracks:
        found |= replacement.keep_events(state, new.markers, span)
    replacement.add_markers({*new.markers} - found)
    return as_file(file, replacement.file_tracks())


class _Replacement:
    """The tracks of a file while they are written anew.

    Attributes:
        keeps_pedal: whether pedals stay as they are.
        tracks: what is written, by the state of the track in the file.
        added: tracks that the file does not have.
        changed: the channels of each track whose notes change.
        removed: the events of notes that are not written.
    """

    def __init__(self, file: MidiFile, keeps_pedal: bool) -> None:
        self.keeps_pedal = keeps_pedal
        self.tracks = {state: FileTrack(end_of_track=state.tick) for state in file.tracks}
        self.added = list[FileTrack]()
        self.changed = {state: set[int]() for state in file.tracks}
        self.removed = set[Event]()
        used = {DRUM_CHANNEL}
        for state in file.tracks:
            used |= {*state.content.programs, *state.struck}
        self._free_channels = [channel for channel in range(16) if channel not in used]

    def replace_part(
        self, state: TrackState, keys: Sequence[ChannelProgram], part: Track, track: Track
    ) -> None:
        """Write the notes of `track` in place of those of a part of the file."""
        new_notes = Counter(track.notes.tolist())
        if new_notes != Counter(part.notes.tolist()):
            self.changed[state] |= {channel for channel, _ in keys}
        for note in chain.from_iterable(state.notes[key] for key in keys):
            if new_notes[note.values] > 0:
                new_notes[note.values] -= 1
            else:
                self.removed |= {note.begin, note.end or note.begin}
        _play(self.tracks[state], new_notes.elements(), keys[0][0], part.program, state)

    def add_track(self, track: Track) -> None:
        """Write a track that the file does not have."""
        if not (track.is_drum or self._free_channels):
            raise UserError("it leaves too few MIDI channels for what is written")
        channel = DRUM_CHANNEL if track.is_drum else self._free_channels.pop(0)
        self.added.append(FileTrack.of(track, channel))
        self.added[-1].add_notes(channel, track.notes.tolist())

    def keep_events(
        self, state: TrackState, markers: Sequence[Marker], span: tuple[int, float]
    ) -> set[Marker]:
        """Write the events of a track that stay; return the markers among them.

        A marker stays if it is one of `markers`.
        """
        file_track, found = self.tracks[state], set[Marker]()
        # The channels of a track without notes belong to other tracks.
        others = set[int]().union(*self.changed.values()) - state.struck.keys()
        channels = self.changed[state] | others
        self._rest(state, channels, span)
        before = TrackState()  # of pedals and bends
        for event in state.events:
            before.read([event])
            controls = [key for key, held in before.held.items() if held == event]
            presses = any(self._belongs_to_notes(key, channels) for key in controls)
            if event in self.removed or (presses and span[0] <= event.tick < span[1]):
                continue
            if event.status == META and event.meta[0] == MARKER:
                marker = Marker(event.tick, read_text(event.meta[1]))
                if marker not in markers:
                    continue
                found.add(marker)
            file_track.add(event.tick, OTHER, event.message)
        self._end_notes(state, channels)
        return found

    def _belongs_to_notes(self, key: tuple[int, int], channels: set[int]) -> bool:
        """Return whether a pedal or wheel, by channel and controller, is that of changed notes."""
        channel, control = key
        return channel in channels and (control == WHEEL or not self.keeps_pedal)

    def _rest(self, state: TrackState, channels: set[int], span: tuple[int, float]) -> None:
        """Release pedals and bends of channels where the span begins; press them at its end."""
        for edge, is_end in zip(span, (False, True), strict=True):
            before = TrackState()
            before.read(event for event in state.events if event.tick <= edge)
            for key, event in before.held.items():
                if self._belongs_to_notes(key, channels) and event.tick < edge < state.tick:
                    pressed = event.message if is_end else at_rest(*key)
                    self.tracks[state].add(int(edge), OFF, pressed)

    def _end_notes(self, state: TrackState, channels: set[int]) -> None:
        """Write an end for the notes of changed channels that have none in the file."""
        for note in chain.from_iterable(state.notes.values()):
            begin = note.begin
            if note.end is None and begin.channel in channels and begin not in self.removed:
                end = sum(note.values[:2])  # onset and duration
                self.tracks[state].add(end, OTHER, (0x80 | begin.channel, *begin.content))

    def add_markers(self, markers: Iterable[Marker]) -> None:
        """Write markers to the first track."""
        for tick, text in sorted(markers):
            self.file_tracks()[0].add_meta(tick, MARKER, text.encode())

    def file_tracks(self) -> list[FileTrack]:
        return [*self.tracks.values(), *self.added]


def _play(
    track: FileTrack, notes: Iterable[Note], channel: int, program: int, state: TrackState
) -> None:
    """Add notes with the program of their part, also where their channel has another one."""
    changes = [event for event in state.events if event.status == 0xC0 | channel]
    for note in notes:
        heard = [0, *(event.content[0] for event in changes if event.tick <= note[0])][-1]
        is_other = bool(changes) and heard != program
        if is_other:
            track.add(note[0], ON, (0xC0 | channel, program))
        track.add_notes(channel, [note])
        if is_other:
            track.add(note[0], ON, (0xC0 | channel, heard))
