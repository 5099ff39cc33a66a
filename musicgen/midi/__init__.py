"""Reading of MIDI files and printed scores as `Score`s, and writing of MIDI files."""

from musicgen.midi.extension import extend
from musicgen.midi.io import (
    as_score,
    divide_book,
    dumps,
    file_of,
    find_music,
    loads,
    music_name,
    read,
    without_suffix,
    write,
)
from musicgen.midi.score import (
    CHOIR_AAHS,
    DEFAULT_VELOCITY,
    DRUMS,
    NOTE,
    TEMPO,
    TICKS_PER_BEAT,
    KeySignature,
    Marker,
    NoteArray,
    Score,
    TimeSignature,
    Track,
    notes_by_role,
    notes_from,
    pitched_notes,
    role,
    sort_notes,
)
