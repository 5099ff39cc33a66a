"""Printed scores in MusicXML, Humdrum **kern, MEI or ABC as `Score`s, read by verovio."""

import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from musicgen.errors import UserError, errors_name
from musicgen.midi.score import (
    CHOIR_AAHS,
    DEFAULT_TEMPO,
    DEFAULT_VELOCITY,
    FERMATA,
    PITCH_CLASSES,
    TEMPO,
    TICKS_PER_BEAT,
    KeySignature,
    Marker,
    Score,
    TimeSignature,
    Track,
    notes_from,
)

SCORE_SUFFIXES = {".abc": "abc", ".krn": "humdrum", ".mei": "mei"}
SCORE_SUFFIXES |= dict.fromkeys((".musicxml", ".mxl", ".xml"), "xml")
"""The suffixes of printed scores, and verovio's names of their formats."""

MAX_BYTES = 2**25
"""Of a score, unzipped: of the songs in public corpora, the longest have a tenth."""

_WHOLE = 4 * TICKS_PER_BEAT
_KEYBOARDS = 8  # programs below
_ID = "{http://www.w3.org/XML/1998/namespace}id"

Metre = tuple[int, int]


@dataclass
class _Print:
    """What is printed, by verovio's ids of bars, notes and rests; a part is an index in `tracks`.

    Attributes:
        bars: metres and key signatures in force.
        pitches: of notes; rests have none.
        tied: notes that a tie joins to the one before.
    """

    tracks: list[Track] = field(default_factory=list)
    part_of_staff: dict[str, int] = field(default_factory=dict)
    bars: dict[str, tuple[Metre, int | None]] = field(default_factory=dict)
    parts: dict[str, int] = field(default_factory=dict)
    pitches: dict[str, int] = field(default_factory=dict)
    tied: set[str] = field(default_factory=set)
    fermatas: set[str] = field(default_factory=set)


def read_score(path: str | Path, *, repeats: bool = False) -> Score:
    """Read a printed score; its suffix tells its format, see `SCORE_SUFFIXES`.

    - A part is a track; the staves of a piano are one. A single staff with words is a choir.
    - Bars begin at the printed bar lines: an incomplete first bar begins with silence, incomplete
      bars that follow each other, such as those around a repeat sign, are one, and every other bar
      of another length has its own time signature.
    - Tied notes are one. Grace notes are left out. Velocities are all the same.
    - Markers are the fermatas of the highest part that has one.

    Args:
        repeats: play what is repeated; without it every bar stands once.

    Raises:
        UserError: the file is damaged, too large, or holds no music; the message names it.
    """
    path = Path(path)
    with errors_name(path):
        try:
            size = path.stat().st_size
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as archive:
                    size = sum(file.file_size for file in archive.infolist())
            if size > MAX_BYTES:
                raise UserError(f"more than {MAX_BYTES >> 20} MB of text; give a smaller score")
            return _score(*_engrave(path, "expandAlways" if repeats else "expandNever"))
        except OSError as error:
            raise UserError(f"cannot be read ({error.strerror}); give a score") from None
        except (zipfile.BadZipFile, ElementTree.ParseError, LookupError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"no score that can be read ({error}); export it again") from None


def _engrave(path: Path, expand: str) -> tuple[_Print, list[dict[str, Any]]]:
    """Return what verovio prints, and when it begins and ends."""
    program, form = Path(__file__).with_name("engrave.py"), SCORE_SUFFIXES[path.suffix.lower()]
    command = [sys.executable, "-P", str(program), form, expand]
    done = subprocess.run(command, input=path.read_bytes(), capture_output=True)
    if done.returncode:
        raise ValueError("damaged")
    mei, events = json.loads(done.stdout)
    return _read_print(ElementTree.fromstring(mei)), events


def _read_print(root: ElementTree.Element) -> _Print:
    printed = _Print()
    marked = {mark.get("startid", "")[1:] for mark in root.iter("fermata")}
    part, metre, fifths, shift = 0, (4, 4), None, 0
    transpositions = dict[str, int]()  # semitones, of staves
    for element in root.iter():
        tag, name, staff = element.tag, element.get(_ID, ""), element.get("n", "")
        if tag in ("staffGrp", "staffDef"):
            _add_part(element, printed)
        if tag == "staffDef" and "trans.semi" in element.attrib:
            transpositions[staff] = int(element.attrib["trans.semi"])
        if tag in ("scoreDef", "staffDef", "staff"):
            shift = transpositions.get(staff, 0)
        if tag in ("scoreDef", "staffDef", "meterSig"):
            metre = _metre(element) or metre
        if tag in ("scoreDef", "staffDef", "keySig") and not shift:
            fifths = _fifths(element, fifths)
        elif tag == "measure":
            printed.bars[name] = metre, fifths
        elif tag == "staff":
            part = printed.part_of_staff[staff]
        elif tag == "syl" and [*printed.part_of_staff.values()].count(part) == 1:
            printed.tracks[part].program = CHOIR_AAHS
        elif tag == "tie":
            printed.tied.add(element.get("endid", "")[1:])
        elif tag in ("note", "rest", "mRest"):
            printed.parts[name] = part
            if "pname" in element.attrib:
                printed.pitches[name] = _pitch(element) + shift
        if name in marked:  # a chord's first note stands for it
            printed.fermatas.add(next(element.iter("note"), element).get(_ID, ""))
    return printed


def _add_part(element: ElementTree.Element, printed: _Print) -> None:
    """Add the part of a staff, or of staves that a brace joins, unless it is there."""
    staves = [staff.get("n", "") for staff in element.iter("staffDef")]
    symbols = [element.get("symbol"), *(each.get("symbol") for each in element.findall("grpSym"))]
    instruments = [each.attrib for each in element.iter("instrDef")]
    programs = [int(each.get("midi.instrnum", 0)) for each in instruments]
    names = {"".join(label.itertext()) for label in element.findall(".//staffDef/label")}
    # Some braces join several instruments.
    is_part = element.tag == "staffDef" or ("brace" in symbols and len(names) < 2)
    if not is_part or not staves or staves[0] in printed.part_of_staff:
        return
    label = element.find(".//label")
    name = "" if label is None else " ".join(" ".join(label.itertext()).split())
    is_drum = any(each.get("midi.channel") == "9" for each in instruments)
    track = Track(name, programs[0] if programs else 0, is_drum)
    # Not all **kern files have braces.
    is_same = bool(printed.tracks and programs) and track == printed.tracks[-1]
    if not is_same or track.program >= _KEYBOARDS:
        printed.tracks.append(track)
    printed.part_of_staff |= dict.fromkeys(staves, len(printed.tracks) - 1)


def _pitch(note: ElementTree.Element) -> int:
    """Return the pitch that sounds, which MEI may tell apart from the printed one."""
    step = PITCH_CLASSES.index(note.attrib["pname"].upper())
    octave = int(note.get("oct.ges", note.get("oct", 4)))
    signs = [note, *note.findall("accid")]
    names = [sign.get(key, "") for key in ("accid.ges", "accid") for sign in signs]
    alters = [{"s": 1, "x": 2, "f": -1}.get(sign, 0) for sign in next(filter(None, names), "")]
    return 12 * (octave + 1) + step + sum(alters)


def _metre(element: ElementTree.Element) -> Metre | None:
    """Return the metre that an element prints."""
    prefix = "" if element.tag == "meterSig" else "meter."
    if beats := element.get(f"{prefix}count"):
        count = sum(int(beat) for beat in beats.split("+"))
        return count, int(element.get(f"{prefix}unit", 4))
    return {"common": (4, 4), "cut": (2, 2)}.get(element.get(f"{prefix}sym", ""))


def _fifths(element: ElementTree.Element, before: int | None) -> int | None:
    """Return the key signature that an element prints, in sharps, or the one before."""
    sig = element.get("sig" if element.tag == "keySig" else "keysig", "")
    if accidentals := element.findall("keyAccid"):
        signs = [sign.get("accid") for sign in accidentals]
        return signs.count("s") - signs.count("f")
    return int(sig[:-1] or 0) * (-1 if sig[-1] == "f" else 1) if sig[:1].isdigit() else before


def _score(printed: _Print, events: list[dict[str, Any]]) -> Score:
    """Build a Score of verovio's events, whose times are in quarters."""
    onsets, ends = dict[str, int](), dict[str, int]()
    tempos = [(0, DEFAULT_TEMPO)]
    starts = [e["qstamp"] * TICKS_PER_BEAT for e in events if "measureOn" in e]
    if not starts or not printed.pitches:
        raise ValueError("no note")
    metre, fifths = next(iter(printed.bars.values()))
    pickup = max(0, _ticks(metre) - round(starts[1])) if len(starts) > 1 else 0
    bars = [(0, metre, fifths)] * (pickup > 0)
    for event in events:
        tick = pickup + round(event["qstamp"] * TICKS_PER_BEAT)
        if "measureOn" in event:
            bars.append((tick, *printed.bars[event["measureOn"]]))
        if event.get("tempo", tempos[-1][1]) != tempos[-1][1]:
            tempos.append((tick if tick > pickup else 0, event["tempo"]))
        onsets |= dict.fromkeys([*event.get("on", ()), *event.get("restsOn", ())], tick)
        ends |= dict.fromkeys(event.get("off", ()), tick)
    if tick >= 2**28 or not {*printed.pitches.values()} <= {*range(128)}:
        raise ValueError("past the last time or pitch of MIDI")
    signatures = _time_signatures([bar[:2] for bar in bars], tick)
    printed_keys = [(at, fifths) for at, _, fifths in bars if fifths is not None]
    keys = [KeySignature(*next(same)) for _, same in groupby(printed_keys, itemgetter(1))]
    rows, fermatas = [list[list[int]]() for _ in printed.tracks], set[tuple[int, int]]()
    ending = dict[tuple[int, int, int], list[int]]()
    for name, onset in onsets.items():
        part, end = printed.parts.get(name, 0), ends.get(name, 0)
        if name in printed.fermatas:
            fermatas.add((part, onset))
        if name not in printed.pitches or end <= onset:
            continue
        pitch = printed.pitches[name]
        note = ending.pop((part, pitch, onset), None) if name in printed.tied else None
        if note is None:
            note = [onset, 0, pitch, DEFAULT_VELOCITY]
            rows[part].append(note)
        note[1] += end - onset
        ending[part, pitch, end] = note
    for track, notes in zip(printed.tracks, rows, strict=True):
        track.notes = notes_from((on, length, p, v) for on, length, p, v in notes)
    highest = min(fermatas, default=(0, 0))[0]
    markers = [Marker(at, FERMATA) for part, at in sorted(fermatas) if part == highest]
    changes = np.array(tempos[1:], TEMPO)
    return Score(
        TICKS_PER_BEAT, printed.tracks, changes, list(signatures), markers, key_signatures=keys
    )


def _ticks(metre: Metre) -> int:
    return _WHOLE * metre[0] // metre[1]


def _time_signatures(starts: list[tuple[int, Metre]], end: int) -> Iterator[TimeSignature]:
    """Yield the changes of metre of bars, each with its first tick and printed metre."""
    bars = list[tuple[int, int, Metre]]()  # first tick and length
    for (tick, metre), after in zip(starts, [*(tick for tick, _ in starts[1:]), end], strict=True):
        length = after - tick
        if bars and bars[-1][1] + length <= _ticks(metre) and bars[-1][2] == metre:
            tick, before, _ = bars.pop()
            length += before
        if length:
            bars.append((tick, length, metre))
    last = None
    for tick, length, metre in bars:
        if tick == bars[-1][0]:  # it may be incomplete: nothing begins after it
            length = max(length, _ticks(metre))
        unit = metre[1]
        # A bar of one beat has two halves: programs that know no metre write 1/4.
        while (length * unit % _WHOLE or length * unit == _WHOLE) and unit < 64:
            unit *= 2
        while length * unit > 255 * _WHOLE and unit > 1:  # the largest numerator of MIDI
            unit //= 2
        metre = -(-length * unit // _WHOLE), unit
        if metre != last:
            yield TimeSignature(tick, *metre)
        last = metre if length * unit % _WHOLE == 0 else None
