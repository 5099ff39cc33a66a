"""The role of a track: its program family, or drums; conf/tokenizer/ has the parts of `Songs`."""

import re
from collections import defaultdict

import numpy as np

from musicgen.errors import ParameterError
from musicgen.midi.score import NoteArray, Score, Track, join_notes, sort_notes
from musicgen.validation import check_int

DRUMS = "Drums"
PROGRAM_FAMILIES = (
    "Piano", "Chromatic percussion", "Organ", "Guitar", "Bass", "Strings", "Ensemble", "Brass",
    "Reed", "Pipe", "Synth lead", "Synth pad", "Synth effects", "Ethnic", "Percussive",
    "Sound effects",
)  # fmt: skip
"""General MIDI's families of eight programs each, in the order of the programs."""


def role(track: Track) -> str:
    """Return `Drums` for a drum track, otherwise the family of the track's program.

    The name of a track does not count: files name the same part `Piano`, `piano` or `MELODY`.
    """
    return DRUMS if track.is_drum else PROGRAM_FAMILIES[track.program // 8]


def names_drums(name: str, program: int) -> bool:
    """Return whether a track is named as drums are, and has no instrument's program."""
    words = r"drums?( ?(set|kit)s?)?|kit|percussion"
    return program == 0 and re.fullmatch(words, name.strip().lower()) is not None


def is_line(notes: NoteArray) -> bool:
    """Return whether notes [num_notes] are a line, such as a tune: nearly all sound one by one.

    A note may sound into the next, as played legato does, but not to the one after that. Up to a
    tenth of the notes may be those of chords.
    """
    ordered = sort_notes(notes)
    onset, end = ordered["onset"], ordered["onset"] + ordered["duration"]
    together = np.diff(onset) == 0
    held = end[:-2] > onset[2:]
    return len(notes) > 0 and 10 * int(together.sum() + held.sum()) <= len(notes)


def program_number(program: int | str) -> int:
    """Return a General MIDI program, 0 to 127, by number or by name, such as `Violin`."""
    if isinstance(program, str) and not program.isdigit():
        from pretty_midi import instrument_name_to_program  # takes a while to import

        try:
            return int(instrument_name_to_program(program))
        except ValueError:
            expected = "expected 0 to 127, or a name of General MIDI such as Acoustic Grand Piano"
            raise ParameterError("program", program, expected) from None
    number = int(program) if isinstance(program, str) else program
    check_int("program", number, 0, maximum=127)
    return number


def notes_by_role(score: Score) -> dict[str, NoteArray]:
    """Return the notes of all tracks of each role, in the order of the tracks."""
    notes: defaultdict[str, list[NoteArray]] = defaultdict(list)
    for track in score.tracks:
        notes[role(track)].append(track.notes)
    return {name: join_notes(parts) for name, parts in notes.items()}


def pitched_notes(score: Score) -> NoteArray:
    """Return the notes of all tracks but drums, sorted. [num_notes]"""
    tracks = [track.notes for track in score.tracks if not track.is_drum]
    return sort_notes(join_notes(tracks))
