"""Notes of a MIDI file replaced by others; the events beside them stay."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from musicgen.errors import UserError
from musicgen.midi.events import (
    DRUM_CHANNEL,
    END_OF_TRACK,
    MARKER,
    META,
    Event,
    meta_value,
    read_text,
)
from musicgen.midi.extension import OTHER, FileTrack, as_file, meta_events
from musicgen.midi.score import Marker, Score
from musicgen.midi.tracks import (
    CENTRE,
    SOSTENUTO,
    SUSTAIN,
    ChannelPitch,
    file_parts,
    open_file,
    track_states,
)


def replace_notes(data: bytes, old: Score, new: Score, span: tuple[int, float]) -> bytes:
    """Return a MIDI file with the notes and the markers of `new` in place of those of `old`.

    All other events stay, but in `span` pedals are not pressed and pitches not bent on the channels
    whose notes change, since that belongs to the notes that leave.

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
    leaving = [Counter[tuple[int, ...]]() for _ in states]  # channel, onset, pitch, velocity
    changed: list[set[int]] = [set() for _ in states]  # channels
    parts = file_parts(states)
    used = {channel for state in states for channel in (*state.programs, *state.struck)}
    free = [c for c in range(16) if c not in {DRUM_CHANNEL, *used}]
    for i, track in enumerate(new.tracks):
        if i < len(old.tracks) and len(old.tracks[i].notes):
            state, keys, own = next(parts)
            number = states.index(state)
            before, after = (Counter(each.notes.tolist()) for each in (own, track))
            gone = Counter((onset, *rest) for onset, _, *rest in (before - after).elements())
            for channel, program in keys:
                for onset, _, *rest in state.notes[channel, program]:
                    if gone[onset, *rest]:
                        gone[onset, *rest] -= 1
                        leaving[number][channel, onset, *rest] += 1
                changed[number] |= {channel} if after != before else set()
            tracks[number].add_notes(keys[0][0], (after - before).elements())
        elif len(track.notes):
            if not (track.is_drum or free):
                raise UserError("it leaves too few MIDI channels for what is written")
            channel = DRUM_CHANNEL if track.is_drum else free.pop(0)
            tracks.append(FileTrack.of(track, channel))
            tracks[-1].add_notes(channel, track.notes.tolist())

    markers = {*new.markers}
    for number, events in enumerate(file.tracks):
        for tick, status, at, stop in _without(
            leaving[number], file.data, events, changed[number], span
        ):
            if status == META and file.data[at] == MARKER:
                marker = Marker(tick, read_text(meta_value(file.data[at:stop])))
                if marker not in markers:
                    continue
                markers.remove(marker)
            tracks[number].add(tick, OTHER, (status, *file.data[at:stop]))
    for tick, kind, event in meta_events(replace(new, markers=sorted(markers))):
        if kind == MARKER:
            tracks[0].add(tick, OTHER, event)
    return as_file(file, tracks)


def _without(
    leaving: Counter[tuple[int, ...]],
    data: bytes,
    events: Sequence[Event],
    changed: set[int],
    span: tuple[int, float],
) -> Iterator[Event]:
    """Yield a track's events but the notes that leave, their pedals and bends, and its end."""
    sounding: defaultdict[ChannelPitch, list[bool]] = defaultdict(list)
    for event in events:
        content, kind, channel = data[event.content : event.stop], *divmod(event.status, 16)
        leaves = event.status == META and content[0] == END_OF_TRACK
        if kind == 9 and content[1]:
            note = channel, event.tick, *content
            leaves = leaving[note] > 0
            leaving[note] -= leaves
            sounding[channel, content[0]].append(leaves)
        elif kind in (8, 9):
            own = sounding[channel, content[0]]
            leaves = bool(own) and own.pop(0)
        elif channel in changed and span[0] <= event.tick < span[1]:
            is_pedal = kind == 0xB and content[0] in (SUSTAIN, SOSTENUTO)
            leaves = (is_pedal and content[1] >= 64) or (kind == 0xE and (*content,) != CENTRE)
        if not leaves:
            yield event
