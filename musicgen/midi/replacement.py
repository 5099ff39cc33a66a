"""Replace the notes of a MIDI file; all other events stay."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain

from musicgen.errors import UserError
from musicgen.midi.events import DRUM_CHANNEL, MARKER, META, Event, read_text
from musicgen.midi.extension import OFF, ON, OTHER, FileTrack, as_file, at_rest
from musicgen.midi.score import Marker, Score
from musicgen.midi.tracks import WHEEL, MidiFile, Note, TrackState, file_parts, open_file


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
    file = open_file(data)
    replacement = _Replacement(file, span, keeps_pedal)
    replacement.write_notes(old, new)
    kept = set[Marker]()
    for number in range(len(file.tracks)):
        kept |= replacement.keep_events(number, new.markers)
    for tick, text in sorted({*new.markers} - kept):
        replacement.tracks[0].add_meta(tick, MARKER, text.encode())
    return as_file(file, replacement.tracks)


class _Replacement:
    """The tracks of a file while they are written anew.

    Attributes:
        tracks: what is written: the tracks of the file, and then new ones.
        changed: the channels of each track of the file whose notes change.
        removed: the events of notes that are not written.
    """

    def __init__(self, file: MidiFile, span: tuple[int, float], keeps_pedal: bool) -> None:
        self.file, self.span, self.keeps_pedal = file, span, keeps_pedal
        self.tracks = [FileTrack(state.tick) for state in file.tracks]
        self.changed = [set[int]() for _ in file.tracks]
        self.removed = set[Event]()

    def write_notes(self, old: Score, new: Score) -> None:
        """Write the notes of `new` in place of those of the parts of the file."""
        states = self.file.tracks
        used = {DRUM_CHANNEL}.union(*(state.programs for state in states))
        used = used.union(*(state.struck for state in states))
        free = [channel for channel in range(16) if channel not in used]
        parts = file_parts(states)
        for i, track in enumerate(new.tracks):
            if i < len(old.tracks) and len(old.tracks[i].notes):
                number, keys, part = next(parts)
                state, (channel, _) = states[number], keys[0]
                new_notes = Counter(track.notes.tolist())
                if new_notes != Counter(part.notes.tolist()):
                    self.changed[number] |= {channel for channel, _ in keys}
                for note, begin, end in chain.from_iterable(state.played[key] for key in keys):
                    if new_notes[note] > 0:
                        new_notes[note] -= 1
                    else:
                        self.removed |= {begin, end or begin}
                _play(self.tracks[number], new_notes.elements(), channel, part.program, state)
            elif len(track.notes):
                if not (track.is_drum or free):
                    raise UserError("it leaves too few MIDI channels for what is written")
                channel = DRUM_CHANNEL if track.is_drum else free.pop(0)
                self.tracks.append(FileTrack.of(track, channel))
                self.tracks[-1].add_notes(channel, track.notes.tolist())

    def keep_events(self, number: int, markers: Sequence[Marker]) -> set[Marker]:
        """Write the events of a track that stay; return the markers among them.

        A marker stays if it is one of `markers`.
        """
        state, file_track, kept = self.file.tracks[number], self.tracks[number], set[Marker]()
        # The channels of a track without notes belong to other tracks.
        others = set[int]().union(*self.changed) - state.struck.keys()
        channels = self.changed[number] | others
        self._rest(state, file_track, channels)
        before = TrackState()  # of pedals and bends
        for event in state.events:
            before.read([event])
            presses = any(
                held is event and self._belongs_to_notes(key, channels)
                for key, held in before.held.items()
            )
            if event in self.removed or (presses and self.span[0] <= event.tick < self.span[1]):
                continue
            if event.status == META and event.meta[0] == MARKER:
                marker = Marker(event.tick, read_text(event.meta[1]))
                if marker not in markers:
                    continue
                kept.add(marker)
            file_track.add(event.tick, OTHER, event.message)
        # Notes of changed channels that have no end in the file get one.
        for (onset, duration, *_), begin, end in chain.from_iterable(state.played.values()):
            if end is None and begin.channel in channels and begin not in self.removed:
                file_track.add(onset + duration, OTHER, (0x80 | begin.channel, *begin.content))
        return kept

    def _belongs_to_notes(self, key: tuple[int, int], channels: set[int]) -> bool:
        """Return whether a pedal or wheel, by channel and controller, is that of changed notes."""
        channel, control = key
        return channel in channels and (control == WHEEL or not self.keeps_pedal)

    def _rest(self, state: TrackState, file_track: FileTrack, channels: set[int]) -> None:
        """Release pedals and bends of channels where the span begins; press them at its end."""
        for edge, is_end in zip(self.span, (False, True), strict=True):
            before = TrackState()
            before.read(event for event in state.events if event.tick <= edge)
            for key, event in before.held.items():
                if self._belongs_to_notes(key, channels) and event.tick < edge < state.tick:
                    pressed = event.message if is_end else at_rest(*key)
                    file_track.add(int(edge), OFF, pressed)


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
