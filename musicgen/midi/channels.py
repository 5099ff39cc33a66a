"""What belongs to a channel, in whichever track of a file it stands: its program, and drums."""

import re

from musicgen.midi.events import (
    DRUM_CHANNEL,
    META,
    SYSEX,
    find_chunks,
    find_events,
    read_text,
    text_bytes,
)

_DRUM_BANKS = (120, 126, 127)  # of GM2 and XG
_SELECTS_DRUMS = re.compile(rb"[\xb0-\xbf](?:[\0-\x7f]{3})*?\0[\x78\x7e\x7f]")
_TEXT = re.compile(rb"\xff[\x01-\x0f]([\0-\xff])")


def drum_channels(data: bytes) -> set[int]:
    """Return the channels of drums: 9, and those whose first notes have a bank of drums."""
    found = {DRUM_CHANNEL}
    if _SELECTS_DRUMS.search(data):
        for start, end in _tracks(data):
            banks: dict[int, int] = {}
            struck = set()
            for event in find_events(data, start, end):
                kind, channel = event.status >> 4, event.status & 0xF
                first, second = data[event.content], data[event.stop - 1]
                if kind == 9 and second:
                    struck.add(channel)
                elif kind == 0xB and first == 0 and channel not in struck:
                    banks[channel] = second
            found |= {channel for channel, bank in banks.items() if bank in _DRUM_BANKS}
    return found


def for_parser(data: bytes) -> bytes:
    """Return a repaired file in which what the parser does not know is where it looks for it.

    Drums are on channel 9, each track has the programs of its channels, and texts are in UTF-8.
    """
    drums = drum_channels(data) - {DRUM_CHANNEL}
    bodies = [data[start:end] for start, end in _tracks(data)]
    out = [data[:14]]
    for body, programs in zip(bodies, _missing_programs(bodies), strict=True):
        if drums or any(_is_foreign(body, match) for match in _TEXT.finditer(body)):
            body = _rewritten(body, drums)
        out += [b"MTrk", (len(programs) + len(body)).to_bytes(4, "big"), programs, body]
    return b"".join(out)


def _tracks(data: bytes) -> list[tuple[int, int]]:
    return [(at + 8, end) for at, end in find_chunks(data) if data[at : at + 4] == b"MTrk"]


def _is_foreign(body: bytes, text: re.Match[bytes]) -> bool:
    length = text[1][0]
    try:
        body[text.end() : text.end() + length].decode()
    except UnicodeDecodeError:
        return True
    return length > 0x7F


def _rewritten(body: bytes, drums: set[int]) -> bytes:
    """Return the events of a track with texts in UTF-8 and some channels changed to channel 9."""
    parts, kept = [], 0
    for event in find_events(body, 0, len(body)):
        content = body[event.content : event.stop]
        if event.status == META and 1 <= content[0] <= 15:
            parts += [body[kept : event.content - 1], text_bytes(content[0], read_text(content))]
            kept = event.stop
        # Not where the status of the event before applies.
        elif event.status < SYSEX and event.status & 0xF in drums and body[event.content - 1] >> 7:
            status = event.status & 0xF0 | DRUM_CHANNEL
            parts += [body[kept : event.content - 1], bytes([status])]
            kept = event.content
    return b"".join([*parts, body[kept:]])


def _missing_programs(bodies: list[bytes]) -> list[bytes]:
    """Return events, at tick 0, of programs that stand in other tracks only. [num_tracks]"""
    # A byte like a status may be another number: then the walk through the events finds nothing.
    kinds = [{b for b in set(body) if b >> 4 in (9, 0xC)} for body in bodies]
    programs = {b & 0xF for found in kinds for b in found if b >> 4 == 0xC}
    if not any(b & 0xF in programs and b | 0x50 not in found for found in kinds for b in found):
        return [b""] * len(bodies)
    first: dict[int, bytes] = {}
    for body, found in zip(bodies, kinds, strict=True):
        found.clear()
        for event in find_events(body, 0, len(body)):
            if event.status >> 4 in (9, 0xC):
                found.add(event.status)
            if event.status >> 4 == 0xC:
                program = bytes([0, event.status, body[event.content]])
                first.setdefault(event.status, program)
    return [
        b"".join(first[b] for b in sorted(first) if b - 0x30 in found and b not in found)
        for found in kinds
    ]
