"""Reading of MIDI files and printed scores as `Score`s, and writing of MIDI files."""

from musicgen.midi.abc_books import divide_book, file_of, music_name
from musicgen.midi.beat_map import onto_beats
from musicgen.midi.beats import Beats, find_beats, read_beats
from musicgen.midi.extension import extend
from musicgen.midi.io import as_score, dumps, find_music, loads, read, without_suffix, write
from musicgen.midi.roles import DRUMS, notes_by_role, pitched_notes, role
from musicgen.midi.score import (
    CHOIR_AAHS,
    DEFAULT_VELOCITY,
    NOTE,
    TEMPO,
    TICKS_PER_BEAT,
    KeySignature,
    Marker,
    NoteArray,
    Score,
    TimeSignature,
    Track,
    notes_from,
    sort_notes,
)

__all__ = [
    "CHOIR_AAHS",
    "DEFAULT_VELOCITY",
    "DRUMS",
    "NOTE",
    "TEMPO",
    "TICKS_PER_BEAT",
    "Beats",
    "KeySignature",
    "Marker",
    "NoteArray",
    "Score",
    "TimeSignature",
    "Track",
    "as_score",
    "divide_book",
    "dumps",
    "extend",
    "file_of",
    "find_beats",
    "find_music",
    "loads",
    "music_name",
    "notes_by_role",
    "notes_from",
    "onto_beats",
    "pitched_notes",
    "read",
    "read_beats",
    "role",
    "sort_notes",
    "without_suffix",
    "write",
]
