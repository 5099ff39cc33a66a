"""Transposition of prompts: their notes, and the bytes of their files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from musicgen.errors import ParameterError, UserError
from musicgen.midi import Score, pitched_notes
from musicgen.midi.damaged_files import check_chunks
from musicgen.midi.events import DRUM_CHANNEL, MARKER, META, find_chunks, find_events, number_bytes
from musicgen.tokenization.chords.symbols import pitch_class, spelled

_KEY_SIGNATURE = 0x59


def tonic_of(name: str) -> int:
    """Return the pitch class of a tonic, such as D, Eb or F#."""
    found = re.fullmatch(r"([A-Ga-g])([#♯b♭]?)", str(name))
    if found is None:
        raise ParameterError("key", name, "expected a tonic such as D, Eb or F#; the mode stays")
    return pitch_class(found[1].upper() + found[2].replace("♯", "#").replace("♭", "b"))


def transpose(score: Score, semitones: int, names: Sequence[str], piece: str) -> Score:
    """Return the score with all notes but drums, and its chord markers, moved by semitones.

    Args:
        names: of the pitch classes in chord markers, see `spelled`.
        piece: its name, for errors.

    Raises:
        UserError: a pitch would leave MIDI's range.
    """
    pitches = pitched_notes(score)["pitch"] + semitones
    if len(pitches) and not 0 <= pitches.min() <= pitches.max() <= 127:
        raise UserError(
            f"{piece}: moved by {semitones} semitones it would reach from pitch {pitches.min()} to "
            f"{pitches.max()}, and MIDI has 0 to 127; transpose by less"
        )
    tracks = []
    for track in score.tracks:
        notes = track.notes.copy()
        notes["pitch"] += 0 if track.is_drum else semitones
        tracks.append(replace(track, notes=notes))
    markers = [m._replace(text=spelled(m.text, names, semitones)) for m in score.markers]
    return replace(score, tracks=tracks, markers=markers)


def transpose_file(data: bytes, semitones: int, names: Sequence[str]) -> bytes:
    """Return a MIDI file with its notes, chord markers and key signatures moved by semitones.

    Channel 10 is drums. All other bytes stay. The file is one that `loads` reads, whose pitches
    stay in range, see `transpose`.
    """
    data, out = check_chunks(data), b""
    for start, stop in find_chunks(data):
        done, body = start + 8, b""
        events = find_events(data, done, stop) if data[start : start + 4] == b"MTrk" else ()
        for event in events:
            kind, channel = event.status >> 4, event.status & 0xF
            content = data[event.content : event.stop]
            if kind in (8, 9, 0xA) and channel != DRUM_CHANNEL:
                content = bytes([content[0] + semitones]) + content[1:]
            elif event.status == META and content[:2] == bytes([_KEY_SIGNATURE, 2]):
                sharps = int.from_bytes(content[2:3], signed=True) + 7 * semitones
                content = (
                    content[:2] + ((sharps + 6) % 12 - 6).to_bytes(1, signed=True) + content[3:]
                )
            elif event.status == META and content[0] == MARKER and content[1] < 0x80:
                text = spelled(content[2:].decode("latin-1"), names, semitones).encode("latin-1")
                content = bytes([MARKER]) + number_bytes(len(text)) + text
            body += data[done : event.content] + content
            done = event.stop
        body += data[done:stop]
        out += data[start : start + 4] + len(body).to_bytes(4, "big") + body
    return out
