"""Signs of a printed staff: names of pitches, accidentals, clefs, beams, chords, lines of drums."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from musicgen.midi.key import signs_of_key
from musicgen.midi.score import Marker, Track
from musicgen.plugins.scores.bars_and_repeats import DRUMS
from musicgen.plugins.scores.musicxml import QUALITIES
from musicgen.plugins.scores.written_time import Value

TYPES = {
    Fraction(8): "breve",
    Fraction(4): "whole",
    Fraction(2): "half",
    Fraction(1): "quarter",
    Fraction(1, 2): "eighth",
} | {Fraction(4, n): f"{n}{'nd' if n == 32 else 'th'}" for n in (16, 32, 64, 128, 256, 512, 1024)}
"""Names of values, by their length in quarters."""

_ACCIDENTALS = {-2: "flat-flat", -1: "flat", 0: "natural", 1: "sharp", 2: "double-sharp"}
_LINES = {pitch: line for line, pitch in reversed(DRUMS.items())} | {
    37: "C5", 40: "C5", 39: "C5", 46: "G5", 50: "E5", 52: "B5", 53: "F5", 55: "B5", 57: "B5",
    59: "F5",
}  # fmt: skip
CYMBALS = frozenset({42, 44, 46, 49, 51, 52, 53, 55, 57, 59})
"""The drums that are printed as crosses."""

_KINDS = {quality: kind for kind, quality in reversed(QUALITIES.items())} | {"M": "major"}
_GUITARS, _BASSES, _VIOLA = range(24, 32), (*range(32, 40), 43), 41


class Spelled(NamedTuple):
    """A pitch as it is printed: a letter, semitones that a sign adds to it, and an octave."""

    step: str
    alter: int
    octave: int


class Clef(NamedTuple):
    """A clef: its sign, its line, and the octaves by which notes sound higher."""

    sign: str
    line: int
    octaves: int = 0


def spell(pitch: int, names: Sequence[str]) -> Spelled:
    """Return a MIDI pitch as it is printed, with the names of `musicgen.midi.key.spelling`."""
    name = names[pitch % 12]
    alter = name.count("#") - name.count("b")
    return Spelled(name[0], alter, (pitch - alter) // 12 - 1)


def accidentals(heads: Iterable[tuple[Spelled, bool]], fifths: int) -> list[str | None]:
    """Return the accidental of each note of a bar, in the order of time; None: it has none.

    Args:
        heads: notes, and whether a tie from the bar before joins each to one.
        fifths: the key signature.
    """
    in_key, in_force = signs_of_key(fifths), dict[tuple[str, int], int]()
    found = list[str | None]()
    for note, is_tied in heads:
        place = note.step, note.octave
        is_clear = in_force.get(place, in_key.get(note.step, 0)) == note.alter
        found.append(None if is_clear or is_tied else _ACCIDENTALS[note.alter])
        if not is_tied:
            in_force[place] = note.alter
    return found


def clef_of(track: Track, pitches: Sequence[int]) -> Clef:
    """Return the clef of a staff, by its instrument and the middle of its range."""
    middle = float(np.median(pitches)) if len(pitches) else 60.0
    if track.is_drum:
        return Clef("percussion", 2)
    if track.program in _GUITARS:
        return Clef("G", 2, -1)
    if track.program in _BASSES:
        return Clef("F", 4, -1)
    if track.program == _VIOLA:
        return Clef("C", 3)
    return Clef("G", 2) if middle >= 58 else Clef("F", 4)


def line_of_drum(pitch: int) -> str:
    """Return the line or space on which a drum is printed, named as in a treble clef."""
    return _LINES.get(pitch, "C5")


def chord_symbol(marker: Marker) -> tuple[str, str, str] | None:
    """Return root, MusicXML's kind and bass of a chord's marker; None if it names no chord."""
    match = re.fullmatch(r"([A-G][#b]*|N)_([^_]+)(?:_([A-G][#b]*|N))?", marker.text)
    if match is None:
        return None
    if match[1] == "N":
        return "N", "none", "N"
    kind = _KINDS.get(match[2])
    return None if kind is None else (match[1], kind, match[3] or match[1])


def beams_of(values: Sequence[Value], beats: Sequence[Fraction]) -> Mapping[int, list[str]]:
    """Return the beams of each value that has any, by its index: the eighths' first.

    Beams join notes of a beat that are all in a tuplet, or all in none.

    Args:
        values: of a voice in a bar.
        beats: where the beats begin, see `beat_starts`.
    """
    groups = list[list[int]]()
    last_place: object = None
    for i, value in enumerate(values):
        place = bisect_right(beats, value.start), value.tuplet
        is_short = value.sound is not None and value.base < 1
        if is_short and groups and groups[-1] and place == last_place:
            groups[-1].append(i)
        else:
            groups.append([i] if is_short else [])
        last_place = place
    found = dict[int, list[str]]()
    for group in groups:
        if len(group) > 1:
            counts = [(1 / values[i].base).numerator.bit_length() - 1 for i in group]
            found |= {i: _beams(counts, k) for k, i in enumerate(group)}
    return found


def _beams(counts: Sequence[int], place: int) -> list[str]:
    """Return the beams of a note in a group, by how many each of its notes has."""
    found = []
    for level in range(1, counts[place] + 1):
        before = place > 0 and counts[place - 1] >= level
        after = place + 1 < len(counts) and counts[place + 1] >= level
        if before or after:
            found.append("continue" if before and after else "end" if before else "begin")
        else:
            found.append("backward hook" if place else "forward hook")
    return found
