"""MEI that verovio engraved, and its times, as a `Sheet`."""

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any
from xml.etree.ElementTree import Element

from musicgen.midi.score import (
    CHOIR_AAHS,
    FERMATA,
    PITCH_CLASSES,
    TICKS_PER_BEAT,
    Marker,
    Track,
)
from musicgen.plugins.scores.drum_staff import drum_at
from musicgen.plugins.scores.sheet import Metre, Sheet, SheetNote, sounding_fifths

_KEYBOARDS = 8  # programs below
_ID = "{http://www.w3.org/XML/1998/namespace}id"
_BEATS = {"whole": 4, "half": 2, "quarter": 1, "eighth": 0.5}


@dataclass
class _Staves:
    """What is in force on the staves, by their numbers; a part is an index of tracks.

    Attributes:
        semitones: from what is printed to what sounds.
        fifths: key signatures as they are printed.
        drums: staves of percussion.
    """

    parts: dict[str, int] = field(default_factory=dict)
    semitones: dict[str, int] = field(default_factory=dict)
    fifths: dict[str, int] = field(default_factory=dict)
    drums: set[str] = field(default_factory=set)


@dataclass
class _Print:
    """What is printed, by verovio's ids of bars, notes and rests.

    Attributes:
        bars: metres in force.
        parts: of notes and rests.
        pitches: of notes; rests and cue notes have none.
        ties: beginnings of the ties that end at a note.
        keys: what a staff's key begins with, its id, the staff and fifths as they sound.
        tempos: the bar, the place in it in quarters, and quarters a minute.
        guessed: drums whose instrument the file does not tell.
    """

    tracks: list[Track] = field(default_factory=list)
    bars: dict[str, Metre] = field(default_factory=dict)
    parts: dict[str, int] = field(default_factory=dict)
    pitches: dict[str, int] = field(default_factory=dict)
    ties: dict[str, str] = field(default_factory=dict)
    fermatas: set[str] = field(default_factory=set)
    keys: list[tuple[str, str, int]] = field(default_factory=list)
    tempos: list[tuple[str, float, float]] = field(default_factory=list)
    guessed: set[str] = field(default_factory=set)


def read_mei(root: Element, events: list[dict[str, Any]]) -> Sheet:
    """Return the music of a file.

    Args:
        events: of verovio's timemap, whose times are in quarters.

    Raises:
        ValueError: there is no bar, or damage.
    """
    if any("mensural" in each.get("notationtype", "") for each in root.iter("staffDef")):
        raise ValueError("mensural notation, which has no bars")
    printed = _Reader(root).printed
    onsets, ends, starts, end = _times(events)
    if not starts:
        raise ValueError("no bar")
    sheet = Sheet(printed.tracks, _notes(printed, onsets, ends))
    sheet.end = end
    sheet.bars = [(tick, printed.bars[name]) for name, tick in starts.items()]
    staves = defaultdict[str, list[tuple[int, int]]](list)
    times = starts | onsets
    for name, staff, fifths in printed.keys:
        if name in times:
            staves[staff].append((times[name], fifths))
    sheet.keys = list(staves.values())
    for bar, place, bpm in printed.tempos:
        if bar in starts and 4 <= bpm <= 1000:
            sheet.tempos.append((starts[bar] + round(place * TICKS_PER_BEAT), bpm))
    fermatas = {(printed.parts[x], onsets[x]) for x in printed.fermatas if x in onsets}
    highest = min(fermatas, default=(0, 0))[0]
    sheet.markers = [Marker(tick, FERMATA) for part, tick in fermatas if part == highest]
    if printed.guessed:
        count = len(printed.guessed)
        sheet.repairs.append(f"{count:,} drums without an instrument placed by their lines")
    return sheet


def _times(
    events: list[dict[str, Any]],
) -> tuple[dict[str, int], dict[str, int], dict[str, int], int]:
    """Return when notes and rests begin, notes end, bars begin, and the last event is, in ticks."""
    onsets, ends, starts = dict[str, int](), dict[str, int](), dict[str, int]()
    tick = 0
    for event in events:
        tick = round(event["qstamp"] * TICKS_PER_BEAT)
        if "measureOn" in event:
            starts.setdefault(event["measureOn"], tick)
        onsets |= dict.fromkeys([*event.get("on", ()), *event.get("restsOn", ())], tick)
        ends |= dict.fromkeys(event.get("off", ()), tick)
    return onsets, ends, starts, tick


def _notes(printed: _Print, onsets: dict[str, int], ends: dict[str, int]) -> list[list[SheetNote]]:
    """Return the notes of each part; a tie joins a note to what it begins with, if that fits."""
    notes, ties_on = [list[SheetNote]() for _ in printed.tracks], {*printed.ties.values()}
    for name, onset in onsets.items():
        pitch, end = printed.pitches.get(name), ends.get(name, 0)
        if pitch is None or end <= onset:
            continue
        first = printed.ties.get(name, "")
        is_tied = printed.pitches.get(first) == pitch and ends.get(first) == onset
        note = SheetNote(onset, end - onset, pitch, is_tied, name in ties_on)
        notes[printed.parts[name]].append(note)
    return notes


class _Reader:
    """Goes through a file in its order; `printed` is what it says."""

    def __init__(self, root: Element) -> None:
        self.printed = _Print()
        self.staves = _Staves()
        self.metre: Metre = (4, 4)
        self.staff = ""
        self.bar = ""
        self.new_keys = dict[str, int]()  # of staves, from the next bar, note or rest on
        self.common_key: int | None = None  # of the staves that follow
        self.new_bpm: float | None = None  # from the next bar on
        self.marked = {mark.get("startid", "")[1:] for mark in root.iter("fermata")}
        self._read(root)

    def _read(self, element: Element) -> None:
        """Read an element and all that it contains."""
        staff_before = self.staff
        is_staff = element.tag in ("staffDef", "staff")
        if is_staff:
            self.staff = element.get("n", "")
        self._read_alone(element)
        if element.get(_ID, "") in self.marked:  # a chord's first note stands for it
            first = next(element.iter("note"), element)
            self.printed.fermatas.add(first.get(_ID, ""))
        for child in element:
            self._read(child)
        if is_staff:
            self.staff = staff_before

    def _read_alone(self, element: Element) -> None:
        """Read an element without what it contains."""
        tag = element.tag
        if tag in ("staffGrp", "staffDef", "scoreDef", "meterSig", "keySig", "clef"):
            self._read_definition(element)
        elif tag == "measure":
            self._begin_bar(element.get(_ID, ""))
        elif tag in ("note", "rest", "mRest", "space", "mSpace"):
            self._read_note(element)
        elif tag == "syl":
            self._add_words()
        elif tag == "tie":
            start, end = element.get("startid", "")[1:], element.get("endid", "")[1:]
            self.printed.ties[end] = start
        elif tag == "tempo":
            self._read_tempo(element)

    def _begin_bar(self, name: str) -> None:
        """Begin a bar in the metre, the keys and the tempo that were printed before it."""
        self.bar = name
        self.printed.bars[name] = self.metre
        self._begin_keys(name, list(self.new_keys))
        if self.new_bpm is not None:
            self.printed.tempos.append((name, 0, self.new_bpm))
            self.new_bpm = None

    def _read_definition(self, element: Element) -> None:
        """Read parts, clefs, metres, keys and transpositions."""
        if element.tag in ("staffGrp", "staffDef"):
            _add_part(element, self.printed.tracks, self.staves)
        semitones = element.get("trans.semi")
        if element.tag == "staffDef" and semitones is not None:
            self.staves.semitones[self.staff] = int(semitones)
            if self.staff in self.staves.fifths:
                self.new_keys[self.staff] = self.staves.fifths[self.staff]
        if element.get("shape") == "perc" or element.get("clef.shape") == "perc":
            self.staves.drums.add(self.staff)
        self.metre = _metre(element) or self.metre
        if element.tag == "staffDef" and self.common_key is not None:
            self.new_keys.setdefault(self.staff, self.common_key)
        fifths = _fifths(element)
        if fifths is not None and self.staff:
            self.new_keys[self.staff] = fifths
        elif fifths is not None:
            self.common_key = None if self.staves.parts else fifths
            self.new_keys |= dict.fromkeys(self.staves.parts, fifths)
        if element.tag == "scoreDef" and element.get("midi.bpm"):
            self.new_bpm = float(element.attrib["midi.bpm"])

    def _begin_keys(self, name: str, staves: list[str]) -> None:
        """Let the new keys of staves begin where a bar, a note or a rest does."""
        for staff in staves:
            fifths = self.new_keys.pop(staff)
            self.staves.fifths[staff] = fifths
            if staff not in self.staves.drums:
                sounding = sounding_fifths(fifths, self.staves.semitones.get(staff, 0))
                self.printed.keys.append((name, staff, sounding))

    def _read_note(self, element: Element) -> None:
        name, part = element.get(_ID, ""), self.staves.parts[self.staff]
        self.printed.parts[name] = part
        if self.staff in self.new_keys:
            self._begin_keys(name, [self.staff])
        if element.tag != "note" or element.get("cue") == "true":
            return
        if "pname" in element.attrib and self.staff not in self.staves.drums:
            semitones = self.staves.semitones.get(self.staff, 0)
            self.printed.pitches[name] = _pitch(element) + semitones
        elif "pname" in element.attrib or "loc" in element.attrib or "pnum" in element.attrib:
            self.printed.tracks[part].is_drum = True
            self.printed.pitches[name] = self._drum(name, element)

    def _drum(self, name: str, element: Element) -> int:
        """Return the drum of a note of percussion."""
        number = element.get("pnum", "")
        if re.fullmatch(r"\d{1,3}", number):
            return int(number)
        self.printed.guessed.add(name)
        if "loc" in element.attrib:
            return drum_at(int(element.attrib["loc"]))
        return _pitch(element)

    def _add_words(self) -> None:
        part = self.staves.parts[self.staff]
        if [*self.staves.parts.values()].count(part) == 1:
            self.printed.tracks[part].program = CHOIR_AAHS

    def _read_tempo(self, element: Element) -> None:
        place = (float(element.get("tstamp", 1)) - 1) * 4 / self.metre[1]
        text = "".join(element.itertext())
        if match := re.fullmatch(r"\d{1,4}(\.\d*)?", element.get("mm", "")):
            unit = 4 / float(element.get("mm.unit", 4))
            bpm = float(match[0]) * unit * (2 - 0.5 ** int(element.get("mm.dots", 0)))
        elif match := re.search(r"\[?(\w+)(-dot|\.)?\s*=\s*(\d{1,4})", text):
            dotted = 1.5 if match[2] else 1
            bpm = float(match[3]) * _BEATS.get(match[1], 1) * dotted
        elif element.get("midi.bpm"):
            bpm = float(element.attrib["midi.bpm"])
        else:
            return
        self.printed.tempos.append((self.bar, max(0, place), bpm))


def _add_part(element: Element, tracks: list[Track], staves: _Staves) -> None:
    """Add the part of a staff, or of staves that a brace joins, unless it is there."""
    names = [staff.get("n", "") for staff in element.iter("staffDef")]
    symbols = [element.get("symbol"), *(each.get("symbol") for each in element.findall("grpSym"))]
    instruments = [each.attrib for each in element.iter("instrDef")]
    programs = [int(each.get("midi.instrnum", 0)) for each in instruments]
    labels = {"".join(label.itertext()) for label in element.findall(".//staffDef/label")}
    # Some braces join several instruments.
    is_part = element.tag == "staffDef" or ("brace" in symbols and len(labels) < 2)
    if not is_part or not names or names[0] in staves.parts:
        return
    label = element.find(".//label")
    name = "" if label is None else " ".join(" ".join(label.itertext()).split())
    is_drum = any(each.get("midi.channel") == "9" for each in instruments)
    program = programs[0] if programs and 0 <= programs[0] < 128 else 0
    track = Track(name, program, is_drum)
    # Not all **kern files have braces.
    is_same = bool(tracks and programs) and track == tracks[-1]
    if not is_same or track.program >= _KEYBOARDS:
        tracks.append(track)
    staves.parts |= dict.fromkeys(names, len(tracks) - 1)
    if is_drum:
        staves.drums |= {*names}


def _pitch(note: Element) -> int:
    """Return the pitch that sounds, which MEI may tell apart from the printed one."""
    step = PITCH_CLASSES.index(note.attrib["pname"].upper())
    octave = int(note.get("oct.ges", note.get("oct", 4)))
    signs = [note, *note.findall("accid")]
    names = [sign.get(key, "") for key in ("accid.ges", "accid") for sign in signs]
    alters = [{"s": 1, "x": 2, "f": -1}.get(sign, 0) for sign in next(filter(None, names), "")]
    return 12 * (octave + 1) + step + sum(alters)


def _metre(element: Element) -> Metre | None:
    """Return the metre that an element prints."""
    prefix = "" if element.tag == "meterSig" else "meter."
    if beats := element.get(f"{prefix}count"):
        count, unit = sum(int(x) for x in beats.split("+")), int(element.get(f"{prefix}unit", 4))
        if not 0 < count < 256 or unit not in (1, 2, 4, 8, 16, 32, 64, 128):
            raise ValueError(f"a time signature of {count}/{unit}")
        return count, unit
    return {"common": (4, 4), "cut": (2, 2)}.get(element.get(f"{prefix}sym", ""))


def _fifths(element: Element) -> int | None:
    """Return the key signature that an element prints, in sharps; None if it prints none."""
    signature = element.get("sig" if element.tag == "keySig" else "keysig", "")
    if accidentals := element.findall("keyAccid"):
        signs = [sign.get("accid") for sign in accidentals]
        return signs.count("s") - signs.count("f")
    if not re.fullmatch(r"0|[1-7][sf]", signature):
        return None
    return int(signature[0]) * (-1 if signature[-1] == "f" else 1)
