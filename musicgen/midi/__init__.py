"""Reading and writing of MIDI files as `Score`s."""

from musicgen.midi.io import MIDI_SUFFIXES, as_score, dumps, find_midi, loads, read, write
from musicgen.midi.score import (
    NOTE,
    TEMPO,
    Marker,
    NoteArray,
    Score,
    TimeSignature,
    Track,
    notes_from,
    sort_notes,
)

__all__ = [
    "MIDI_SUFFIXES",
    "NOTE",
    "TEMPO",
    "Marker",
    "NoteArray",
    "Score",
    "TimeSignature",
    "Track",
    "as_score",
    "dumps",
    "find_midi",
    "loads",
    "notes_from",
    "read",
    "sort_notes",
    "write",
]
