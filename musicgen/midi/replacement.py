"""Notes of a MIDI file replaced by others; the events beside them stay."""

from collections import Counter
from collections.abc import Iterable
from itertools import chain

from musicgen.errors import UserError
from musicgen.midi.events import DRUM_CHANNEL, MARKER, META, Event, number_bytes, read_text
from musicgen.midi.extension import OFF, ON, OTHER, FileTrack, as_file, at_rest
from musicgen.midi.score import Marker, Score
from musicgen.midi.tracks import Note, TrackState, file_parts, open_file


def replace_notes(data: bytes, old: Score, new: Score, span: tuple[int, float]) -> bytes:
    """Return a MIDI file with the notes and the markers of `new` in place of those of `old`.

    All other events stay, but in `span` pedals are not pressed and pitches not bent on the channels
    whose notes change, since that belongs to the notes that leave. Notes without an end get theirs.

    Args:
        old: the score of the file.
        new: the same tracks with other notes, and then new tracks.
        span: ticks [first, end) of the notes that change.

    Raises:
        UserError: there are too few channels for the new tracks.
    """
    file = open_file(data)
    for state in file.tracks:
        state.end_notes(4 * file.ticks_per_beat)  # as `loads` does
    tracks = {state: FileTrack(end_of_track=state.tick) for state in file.tracks}
    changed = {state: set[int]() for state in file.tracks}  # channels
    gone = set[Event]()
    parts = file_parts([state.content for state in file.tracks])
    used = {channel for state in tracks for channel in (*state.content.programs, *state.struck)}
    free = [c for c in range(16) if c not in {DRUM_CHANNEL, *used}]
    added = []
    for i, track in enumerate(new.tracks):
        if i < len(old.tracks) and len(old.tracks[i].notes):
            number, keys, own = next(parts)
            state = file.tracks[number]
            left = Counter(track.notes.tolist())
            if left != Counter(own.notes.tolist()):
                changed[state] |= {channel for channel, _ in keys}
            for note in chain.from_iterable(state.notes[key] for key in keys):
                if left[note.values] > 0:
                    left[note.values] -= 1
                else:
                    gone |= {note.begin, note.end or note.begin}
            _play(tracks[state], left.elements(), keys[0][0], own.program, state)
        elif len(track.notes):
            if not (track.is_drum or free):
                raise UserError("it leaves too few MIDI channels for what is written")
            channel = DRUM_CHANNEL if track.is_drum else free.pop(0)
            added.append(FileTrack.of(track, channel))
            added[-1].add_notes(channel, track.notes.tolist())

    markers = {*new.markers}
    for state, file_track in tracks.items():
        # The channels of a track without notes are those of others.
        channels = changed[state] | (set().union(*changed.values()) - state.struck.keys())
        _rest(file_track, state, channels, span)
        before = TrackState()  # of pedals and bends
        for event in state.events:
            before.read([event])
            presses = event in before.held.values() and event.channel in channels
            if event in gone or (presses and span[0] <= event.tick < span[1]):
                continue
            if event.status == META and event.meta[0] == MARKER:
                marker = Marker(event.tick, read_text(event.meta[1]))
                if marker not in new.markers:
                    continue
                markers.discard(marker)  # several tracks may have it
            file_track.add(event.tick, OTHER, event.message)
        for note in chain.from_iterable(state.notes.values()):
            if note.end is None and note.begin.channel in channels and note.begin not in gone:
                off = (0x80 | note.begin.channel, *note.begin.content)
                file_track.add(sum(note.values[:2]), OTHER, off)
    file_tracks = [*tracks.values(), *added]
    for tick, text in sorted(markers):
        value = text.encode()
        file_tracks[0].add(tick, OTHER, (META, MARKER, *number_bytes(len(value)), *value))
    return as_file(file, file_tracks)


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


def _rest(track: FileTrack, state: TrackState, channels: set[int], span: tuple[int, float]) -> None:
    """Release pedals and bends of channels where the span begins, and press them at its end."""
    for edge, is_end in zip(span, (False, True), strict=True):
        before = TrackState()
        before.read(event for event in state.events if event.tick <= edge)
        for (channel, control), event in before.held.items():
            if channel in channels and event.tick < edge < state.tick:
                pressed = event.message if is_end else at_rest(channel, control)
                track.add(int(edge), OFF, pressed)
