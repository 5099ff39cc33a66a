"""Notes of a MIDI file replaced by others; all other events stay as they are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from musicgen.errors import UserError
from musicgen.midi.damaged_files import check_chunks
from musicgen.midi.events import (
    DRUM_CHANNEL,
    END_OF_TRACK,
    META,
    OFF,
    OTHER,
    TRACK_NAME,
    Row,
    find_chunks,
    find_events,
    head_rows,
    note_rows,
    read_text,
    track_chunk,
)
from musicgen.midi.score import NoteArray, Track, notes_from


@dataclass(frozen=True)
class Part:
    """The notes of a channel in a chunk of a MIDI file, in the file's ticks.

    Attributes:
        places: the positions of each note's on and off among the chunk's events, by note.
        hanging: tick, pitch and position of each note-on that no note-off ends; they are no notes.
    """

    chunk: int
    channel: int
    track: Track
    places: Sequence[tuple[int, int]]
    hanging: Sequence[tuple[int, int, int]]


def read_parts(data: bytes) -> list[Part]:
    """Return the parts of a file that have notes: a note-off ends the earliest note of its key."""
    parts = []
    for number, (start, stop) in enumerate(find_chunks(data)):
        if data[start : start + 4] != b"MTrk":
            continue
        name, programs = "", dict[int, int]()
        sounding = defaultdict[tuple[int, int], list[tuple[int, int, int]]](list)
        notes = defaultdict[int, list[tuple[tuple[int, int, int, int], tuple[int, int]]]](list)
        for at, event in enumerate(find_events(data, start + 8, stop)):
            content = data[event.content : event.stop]
            kind, channel = event.status >> 4, event.status & 0xF
            if event.status == META and content[0] == TRACK_NAME and not name:
                name = read_text(content)
            elif kind == 0xC:
                programs.setdefault(channel, content[0])
            elif kind == 9 and content[1]:
                sounding[channel, content[0]].append((event.tick, content[1], at))
            elif kind in (8, 9) and sounding[channel, content[0]]:
                onset, velocity, begin = sounding[channel, content[0]].pop(0)
                row = onset, event.tick - onset, content[0], velocity
                notes[channel].append((row, (begin, at)))
        for channel, found in sorted(notes.items()):
            found.sort(key=lambda each: (each[0][0], each[0][2], each[0][1], each[0][3]))
            track = Track(name, programs.get(channel, 0), channel == DRUM_CHANNEL)
            track.notes = notes_from(row for row, _ in found)
            hanging = [
                (onset, pitch, at)
                for (own, pitch), left in sounding.items()
                for onset, _, at in left
                if own == channel
            ]
            parts.append(Part(number, channel, track, [places for _, places in found], hanging))
    return parts


def replace_notes(
    data: bytes,
    replaced: Mapping[int, Sequence[tuple[int, int]]],
    notes: Mapping[int, NoteArray],
    added: Sequence[Track],
    *,
    early: int = 0,
) -> bytes:
    """Return a MIDI file in which notes of some parts are replaced.

    Notes that begin in a span of ticks are left out; those that sound at its start end there, also
    those that nothing else ends, which the note-offs of new notes would. All other events keep
    their ticks, order and content, and chunks without a change all their bytes.

    Args:
        replaced: the spans [start, end), by index in `read_parts`.
        notes: new notes of these parts, in the file's ticks.
        added: tracks of new parts, for which a file of format 0 becomes one of format 1.
        early: ticks by which a note may precede a span's edge and yet begin behind it.

    Raises:
        UserError: the file has no room for the new parts.
    """
    data = check_chunks(data)
    parts = read_parts(data)
    chunks = [data[start:stop] for start, stop in find_chunks(data)]
    spans = list(find_chunks(data))
    for number in {parts[index].chunk for index in replaced}:
        start, stop = spans[number]
        events = list(find_events(data, start + 8, stop))
        rows: list[Row | None] = [
            (e.tick, OTHER, bytes([e.status]) + data[e.content : e.stop]) for e in events
        ]
        new: list[Row] = []
        for index, own in replaced.items():
            part = parts[index]
            if part.chunk != number:
                continue
            for (onset, duration, *_), (begin, end) in zip(
                part.track.notes.tolist(), part.places, strict=True
            ):
                if any(first <= onset + early < last for first, last in own):
                    rows[begin] = rows[end] = None
                elif cuts := [x for x, _ in own if onset + early < x < onset + duration]:
                    rows[end] = min(cuts), OFF, rows[end][2]  # type: ignore[index]
            for onset, pitch, at in part.hanging:
                if any(first <= onset + early < last for first, last in own):
                    rows[at] = None
                elif cuts := [first for first, _ in own if onset + early < first]:
                    new.append((min(cuts), OFF, bytes([0x80 | part.channel, pitch, 0])))
            new += note_rows(part.channel, notes[index])
        closing = bytes([META, END_OF_TRACK])
        kept = [row for row in rows if row is not None and not row[2].startswith(closing)]
        last = max((event.tick for event in events), default=0)
        chunks[number] = track_chunk([*kept, *new], end=last)
    if added:
        used = {part.channel for part in parts}
        free = [c for c in range(16) if c not in {*used, DRUM_CHANNEL}]
        for track in added:
            if not (track.is_drum or free):
                raise UserError("it leaves too few MIDI channels for the new parts")
            channel = DRUM_CHANNEL if track.is_drum else free.pop(0)
            rows_of_track = *head_rows(track, channel), *note_rows(channel, track.notes)
            chunks.append(track_chunk(rows_of_track))
        num_tracks = sum(chunk.startswith(b"MTrk") for chunk in chunks)
        chunks[0] = chunks[0][:8] + b"\0\1" + num_tracks.to_bytes(2, "big") + chunks[0][12:]
    return b"".join(chunks)
