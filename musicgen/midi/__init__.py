"""Reading and writing of MIDI files as `Score`s."""

from musicgen.midi.extension import extend
from musicgen.midi.io import (
    as_score,
    dumps,
    find_midi,
    loads,
    midi_below,
    read,
    read_with_data,
    without_suffix,
    write,
)
from musicgen.midi.pitches import PITCH_CLASSES, pitch_name
from musicgen.midi.roles import (
    DRUMS,
    notes_by_role,
    pitched_notes,
    program_number,
    role,
)
from musicgen.midi.score import (
    FERMATA,
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
    "DRUMS",
    "FERMATA",
    "NOTE",
    "PITCH_CLASSES",
    "TEMPO",
    "Marker",
    "NoteArray",
    "Score",
    "TimeSignature",
    "Track",
    "as_score",
    "dumps",
    "extend",
    "find_midi",
    "loads",
    "midi_below",
    "notes_by_role",
    "notes_from",
    "pitch_name",
    "pitched_notes",
    "program_number",
    "read",
    "read_with_data",
    "role",
    "sort_notes",
    "without_suffix",
    "write",
]
