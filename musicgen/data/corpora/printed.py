"""Printed scores, in MusicXML or Humdrum **kern, as `Score`s.

music21 reads them too, but takes seven times as long for MusicXML, thirty times for **kern.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from xml.etree import ElementTree

from musicgen.errors import UserError
from musicgen.midi import FERMATA, PITCH_CLASSES, Marker, Score, TimeSignature, Track, notes_from
from musicgen.tokenization.base import TICKS_PER_BEAT

SUFFIXES = (".krn", ".musicxml", ".mxl", ".xml")
_PROGRAM, _VELOCITY = 52, 80  # Choir Aahs
_KERN_NOTE = re.compile(r"(\d+)(\.*)[^\da-gA-Gr]*(?:([a-gA-G]+)([#n-]*)|r)")

Metre = tuple[int, int]


@dataclass
class _PrintedPart:
    """A part; times are in quarter notes."""

    name: str
    notes: list[list[Fraction]] = field(default_factory=list)  # onset, duration, pitch
    by_end: dict[tuple[int, Fraction], list[list[Fraction]]] = field(default_factory=dict)
    fermatas: list[Fraction] = field(default_factory=list)
    end: Fraction = Fraction(0)  # of the last note or rest
    divisions: int = 1  # of a quarter note in MusicXML

    def add(self, onset: Fraction, duration: Fraction, pitch: int, *, tied: bool) -> None:
        """Add a note, or lengthen the one that a tie joins to it."""
        ending = self.by_end.get((pitch, onset))
        if tied and ending:
            note = ending.pop()
            note[1] += duration
        else:
            note = [onset, duration, Fraction(pitch)]
            self.notes.append(note)
        self.by_end.setdefault((pitch, onset + duration), []).append(note)


@dataclass
class _Print:
    """What is printed: the parts, the bars' lengths and metres, and changes of key."""

    parts: list[_PrintedPart]
    bars: list[tuple[Fraction, Metre]] = field(default_factory=list)
    keys: dict[Fraction, str] = field(default_factory=dict)
    metre: Metre = (4, 4)
    start: Fraction = Fraction(0)  # of the bar that is read

    def end_bar(self) -> None:
        end = max(part.end for part in self.parts)
        if end > self.start:
            self.bars.append((end - self.start, self.metre))
        self.start = end


def read_printed(path: Path) -> Score:
    """Read a score in MusicXML (`.mxl`, `.xml`, `.musicxml`) or Humdrum **kern (`.krn`).

    - Each part is a track, the highest first. Grace notes are left out.
    - Every bar stands once, as printed: repeats are not expanded.
    - Bars begin at the printed barlines: an incomplete first bar begins with silence, incomplete
      bars that follow each other, such as those around a repeat sign, are one, and every other bar
      of another length has its own time signature.
    - Markers hold the key signatures (`Key signature: 2 sharps`) and the fermatas of the highest
      part that has one. Modes are not kept: the files often call a minor key major.

    Raises:
        ValueError: the file is damaged, or in a form that is not supported.
    """
    try:
        printed = _read_kern(path) if path.suffix == ".krn" else _read_musicxml(path)
        return _score(printed)
    except (ElementTree.ParseError, zipfile.BadZipFile, LookupError, ValueError) as error:
        raise UserError(f"{path}: no score that can be read ({error}); leave it out") from None


def _read_musicxml(path: Path) -> _Print:
    root = ElementTree.fromstring(read_xml(path))
    names = [part.findtext("part-name") or "" for part in root.iter("score-part")]
    printed = _Print([_PrintedPart(name) for name in names])
    for measures in zip(*(part.findall("measure") for part in root.findall("part")), strict=True):
        for part, measure in zip(printed.parts, measures, strict=True):
            _read_measure(measure, part, printed)
        printed.end_bar()
    return printed


def _read_measure(measure: ElementTree.Element, part: _PrintedPart, printed: _Print) -> None:
    onset = at = printed.start
    for item in measure:
        duration = Fraction(int(item.findtext("duration") or 0), part.divisions)
        if item.tag == "attributes":
            part.divisions = int(item.findtext("divisions") or part.divisions)
            if beats := item.findtext("time/beats"):
                printed.metre = int(beats), int(item.findtext("time/beat-type") or 4)
            if fifths := item.findtext("key/fifths"):
                printed.keys[at] = _key(int(fifths))
        elif item.tag == "backup":
            at -= duration
        elif item.tag == "forward":
            at += duration
        elif item.tag == "note" and item.find("grace") is None:
            if item.find("chord") is None:
                onset, at = at, at + duration
            if item.find("pitch") is not None:
                step = PITCH_CLASSES.index(item.findtext("pitch/step") or "")
                alter = int(item.findtext("pitch/alter") or 0)
                pitch = 12 * (int(item.findtext("pitch/octave") or 0) + 1) + step + alter
                ties = [tie.get("type") for tie in item.findall("tie")]
                part.add(onset, duration, pitch, tied="stop" in ties)
            if item.find("notations/fermata") is not None:
                part.fermatas.append(onset)
        part.end = max(part.end, at)


def read_xml(path: Path) -> bytes:
    """Return the text of a MusicXML file, compressed or not."""
    if path.suffix != ".mxl":
        return path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        (container,) = (name for name in archive.namelist() if name == "META-INF/container.xml")
        root = ElementTree.fromstring(archive.read(container)).find(".//{*}rootfile")
        return archive.read(root.get("full-path", "")) if root is not None else b""


def _read_kern(path: Path) -> _Print:
    lines = [line.split("\t") for line in path.read_text("latin-1").splitlines()]
    lines = [cells for cells in lines if not cells[0].startswith("!!") and cells != [""]]
    spines = [i for i, cell in enumerate(lines[0]) if cell == "**kern"]
    printed = _Print([_PrintedPart("") for _ in spines])
    for cells in lines[1:]:
        if any(cell in ("*^", "*v", "*+", "*x") for cell in cells):
            raise ValueError("spines that divide or join are not supported")
        if cells[0].startswith("="):
            printed.end_bar()
        for part, cell in zip(printed.parts, (cells[i] for i in spines), strict=True):
            if cell.startswith("!") and not part.notes:
                part.name = cell.removeprefix("!")
            elif metre := re.fullmatch(r"\*M(\d+)/(\d+)", cell):
                printed.metre = int(metre[1]), int(metre[2])
            elif cell.startswith("*k["):
                printed.keys[printed.start] = _key(cell.count("#") - cell.count("-"))
            elif cell[0] not in "!*=.":
                _read_kern_cell(cell, part)
    printed.end_bar()
    printed.parts.reverse()  # the bass is the first
    return printed


def _read_kern_cell(cell: str, part: _PrintedPart) -> None:
    onset = part.end
    for token in cell.split():
        if "q" in token:  # a grace note
            continue
        note = _KERN_NOTE.search(token)
        if note is None:
            raise ValueError(f"not a note: {token}")
        number, dots, letters, accidentals = note.groups()
        value = Fraction(4, int(number)) if int(number) else Fraction(4 * 2 ** len(number))
        duration = value * (2 - Fraction(1, 2 ** len(dots)))
        if letters:
            octave = 4 + len(letters) if letters.islower() else 5 - len(letters)
            pitch = 12 * octave + PITCH_CLASSES.index(letters[0].upper())
            pitch += accidentals.count("#") - accidentals.count("-")
            part.add(onset, duration, pitch, tied="]" in token or "_" in token)
        if ";" in token:
            part.fermatas.append(onset)
        part.end = onset + duration


def _key(fifths: int) -> str:
    """Return the text of a key signature's marker."""
    name = "sharps or flats" if not fifths else "sharp" if fifths > 0 else "flat"
    return f"Key signature: {abs(fifths) or 'no'} {name}{'s' if abs(fifths) > 1 else ''}"


def _score(printed: _Print) -> Score:
    length, (beats, unit) = printed.bars[0]
    pickup = max(Fraction(0), Fraction(4 * beats, unit) - length)

    def ticks(time: Fraction) -> int:
        return round((pickup + time) * TICKS_PER_BEAT)

    tracks = []
    for part in printed.parts:
        rows = [
            (ticks(onset), ticks(onset + duration) - ticks(onset), int(pitch), _VELOCITY)
            for onset, duration, pitch in part.notes
        ]
        tracks.append(Track(part.name, _PROGRAM, notes=notes_from(rows)))
    fermatas = next((part.fermatas for part in printed.parts if part.fermatas), [])
    texts = {(max(0, ticks(time)) if time else 0, text) for time, text in printed.keys.items()}
    texts |= {(ticks(time), FERMATA) for time in fermatas}
    signatures = list(_time_signatures(printed.bars, pickup))
    markers = [Marker(*text) for text in sorted(texts)]
    return Score(TICKS_PER_BEAT, tracks, time_signatures=signatures, markers=markers)


def _time_signatures(
    printed: list[tuple[Fraction, Metre]], pickup: Fraction
) -> Iterator[TimeSignature]:
    """Yield the changes of metre of bars, the first of which begins with silence."""
    bars: list[tuple[Fraction, Metre]] = []
    for number, (length, metre) in enumerate(printed):
        length += 0 if number else pickup
        full = Fraction(4 * metre[0], metre[1])
        if bars and bars[-1][0] + length <= full and bars[-1][1] == metre:
            length += bars.pop()[0]
        bars.append((length, metre))
    # The last bar may be incomplete: nothing begins after it.
    length, metre = bars[-1]
    bars[-1] = max(length, Fraction(4 * metre[0], metre[1])), metre
    time, before = Fraction(0), None
    for length, (_, unit) in bars:
        own = length / 4 * unit
        metre = own.numerator, unit * own.denominator
        if metre != before:
            yield TimeSignature(round(time * TICKS_PER_BEAT), *metre)
        time, before = time + length, metre
