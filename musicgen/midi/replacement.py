"""Notes of a MIDI file replaced by others; the events beside them stay."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from musicgen.errors import UserError
from musicgen.midi.events import (
    DRUM_CHANNEL,
    END_OF_TRACK,
    MARKER,
    META,
    Event,
    meta_value,
    number_bytes,
    read_text,
)
from musicgen.midi.extension import OFF, ON, OTHER, FileTrack, as_file, at_rest
from musicgen.midi.score import Marker, Score
from musicgen.midi.tracks import (
    ChannelPitch,
    MidiFile,
    Note,
    TrackState,
    file_parts,
    open_file,
    track_states,
)


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
    states = track_states(file)
    for state in states:
        state.end_notes(4 * file.ticks_per_beat)  # as `loads` does
    tracks = [FileTrack(end_of_track=state.tick) for state in states]
    told = [defaultdict[Note, list[tuple[int, bool]]](list) for _ in states]
    changed: list[set[int]] = [set() for _ in states]  # channels
    parts = file_parts(states)
    used = {channel for state in states for channel in (*state.programs, *state.struck)}
    free = [c for c in range(16) if c not in {DRUM_CHANNEL, *used}]
    for i, track in enumerate(new.tracks):
        if i < len(old.tracks) and len(old.tracks[i].notes):
            state, keys, own = next(parts)
            number = states.index(state)
            left = Counter(track.notes.tolist())
            changed[number] |= {c for c, _ in keys if left != Counter(own.notes.tolist())}
            for key in keys:
                for note in state.notes[key]:
                    stays = left[note] > 0
                    left[note] -= stays
                    told[number][key[0], note[0], note[2], note[3]].append((sum(note[:2]), stays))
            _play(tracks[number], left.elements(), keys[0][0], own.program, file, number)
        elif len(track.notes):
            if not (track.is_drum or free):
                raise UserError("it leaves too few MIDI channels for what is written")
            channel = DRUM_CHANNEL if track.is_drum else free.pop(0)
            tracks.append(FileTrack.of(track, channel))
            tracks[-1].add_notes(channel, track.notes.tolist())

    markers = {*new.markers}
    for number, events in enumerate(file.tracks):
        # The channels of a track without notes are those of others.
        channels = changed[number] | (set().union(*changed) - states[number].struck.keys())
        _rest(tracks[number], file, number, channels, span)
        for tick, status, at, stop in _without(told[number], file.data, events, channels, span):
            if status == META and file.data[at] == MARKER:
                marker = Marker(tick, read_text(meta_value(file.data[at:stop])))
                if marker not in new.markers:
                    continue
                markers.discard(marker)  # several tracks may have it
            tracks[number].add(tick, OTHER, (status, *file.data[at:stop]))
    for tick, text in sorted(markers):
        value = text.encode()
        tracks[0].add(tick, OTHER, (META, MARKER, *number_bytes(len(value)), *value))
    return as_file(file, tracks)


def _play(
    track: FileTrack, notes: Iterable[Note], channel: int, program: int, file: MidiFile, number: int
) -> None:
    """Add notes with the program of their part, also where their channel has another one."""
    changes = [e for e in file.tracks[number] if e.status == 0xC0 | channel]
    for note in notes:
        heard = [0, *(file.data[e.content] for e in changes if e.tick <= note[0])][-1]
        is_other = bool(changes) and heard != program
        if is_other:
            track.add(note[0], ON, (0xC0 | channel, program))
        track.add_notes(channel, [note])
        if is_other:
            track.add(note[0], ON, (0xC0 | channel, heard))


def _rest(
    track: FileTrack, file: MidiFile, number: int, channels: set[int], span: tuple[int, float]
) -> None:
    """Release pedals and bends of channels where the span begins, and press them at its end."""
    events = file.tracks[number]
    for edge, is_end in zip(span, (False, True), strict=True):
        state = TrackState()
        state.read(file.data, (event for event in events if event.tick <= edge))
        for (channel, control), event in state.held.items():
            if channel in channels and event.tick < edge < events[-1].tick:
                pressed = event.status, *file.data[event.content : event.stop]
                track.add(int(edge), OFF, pressed if is_end else at_rest(channel, control))


def _without(
    told: Mapping[Note, list[tuple[int, bool]]],
    data: bytes,
    events: Sequence[Event],
    changed: set[int],
    span: tuple[int, float],
) -> Iterator[Event]:
    """Yield a track's events but the notes that leave, their pedals and bends, and its end.

    What is told: ends of notes, and whether they stay, by channel, onset, pitch and velocity.
    """
    sounding: defaultdict[ChannelPitch, list[tuple[Event, int, bool]]] = defaultdict(list)
    state = TrackState()  # of pedals and bends
    for event in events:
        content, kind, channel = data[event.content : event.stop], *divmod(event.status, 16)
        leaves = event.status == META and content[0] == END_OF_TRACK
        if kind == 9 and content[1]:
            end, stays = told[channel, event.tick, content[0], content[1]].pop(0)
            sounding[channel, content[0]].append((event, end, stays))
            leaves = not stays
        elif kind in (8, 9):
            own = sounding[channel, content[0]]
            leaves = bool(own) and not own.pop(0)[2]
        elif kind < 15 and channel in changed and span[0] <= event.tick < span[1]:
            state.read(data, [event])
            leaves = event in state.held.values()
        if not leaves:
            yield event
    for event, end, stays in chain.from_iterable(sounding.values()):  # notes without an end
        if event.status & 0xF in changed and stays:
            yield event._replace(tick=end, status=event.status ^ 0x10)
