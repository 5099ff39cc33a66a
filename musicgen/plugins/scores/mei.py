"""MEI that verovio engraved, and its times, as a `Sheet`."""

import re
from bisect import bisect_left
from collections import defaultdict
from itertools import pairwise
from typing import Any
from xml.etree.ElementTree import Element

from musicgen.midi.score import (
    CHOIR_AAHS,
    DOUBLE_BAR,
    FERMATA,
    PITCH_CLASSES,
    TICKS_PER_BEAT,
    Track,
)
from musicgen.plugins.scores.bars_and_repeats import (
    DRUMS,
    KEYBOARDS,
    SNARE,
    Metre,
    Note,
    PrintedKey,
)
from musicgen.plugins.scores.sheet import Sheet, is_divided
from musicgen.text import pluralize

_ID = "{http://www.w3.org/XML/1998/namespace}id"
_REPEATS = {"mRpt", "mRpt2", "multiRpt", "beatRpt", "halfmRpt"}
_BEATS = {"whole": 4, "half": 2, "quarter": 1, "eighth": 0.5}


def read_mei(root: Element, events: list[dict[str, Any]]) -> Sheet:
    """Return the music of a file.

    Args:
        events: of verovio's timemap, whose times are in quarters.

    Raises:
        ValueError: there is no bar, or damage.
    """
    if any("mensural" in each.get("notationtype", "") for each in root.iter("staffDef")):
        raise ValueError("mensural notation, which has no bars")
    reader = _Reader(events)
    reader.read(root)
    if not reader.starts:
        raise ValueError("no bar")
    return reader.finish(root)


class _Reader:
    """Goes through a file in its order. Staves have their numbers, other elements verovio's ids.

    Attributes:
        starts: ticks at which bars begin.
        onsets: ticks at which notes, chords and rests begin.
        ends: ticks at which notes end.
        metres: of bars.
        parts: of staves; a part is an index of the sheet's tracks.
        semitones: of staves, from what is printed to what sounds.
        printed_keys: key signatures of staves as they are printed.
        drums: staves of percussion.
        new_keys: of staves, from the next bar, note or rest on.
        common_key: of the staves that follow.
        new_bpm: from the next bar on.
        notes: parts and pitches of notes; chords, rests and cue notes have None for a pitch.
        ties: beginnings of the ties that end at a note.
        written: notes of each staff that are printed in another octave where a sign says so.
        signs: of octaves, tempi and fermatas, with their bars.
        num_microtones: notes whose pitches are no semitones.
    """

    def __init__(self, events: list[dict[str, Any]]) -> None:
        self.sheet = Sheet()
        self.starts, self.onsets, self.ends = dict[str, int](), dict[str, int](), dict[str, int]()
        for event in events:
            self.sheet.end = tick = round(event["qstamp"] * TICKS_PER_BEAT)
            if "measureOn" in event:
                self.starts.setdefault(event["measureOn"], tick)
            self.onsets |= dict.fromkeys([*event.get("on", ()), *event.get("restsOn", ())], tick)
            self.ends |= dict.fromkeys(event.get("off", ()), tick)
        self.metre: Metre = (4, 4)
        self.metres = dict[str, Metre]()
        self.bar = self.staff = ""
        self.parts = dict[str, int]()
        self.semitones = defaultdict[str, int](int)
        self.printed_keys = dict[str, PrintedKey]()
        self.drums = set[str]()
        self.new_keys = dict[str, PrintedKey]()
        self.common_key: PrintedKey | None = None
        self.new_bpm: float | None = None
        self.keys = defaultdict[str, list[tuple[int, PrintedKey]]](list)
        self.notes = dict[str, tuple[int, int | None]]()
        self.ties = dict[str, str]()
        self.written = defaultdict[str, list[str]](list)
        self.signs = list[tuple[Element, str]]()
        self.num_microtones = 0

    def finish(self, root: Element) -> Sheet:
        """Return the sheet; a tie joins a note to what it begins with, if that fits."""
        self._move_octaves()
        self.sheet.notes = [[] for _ in self.sheet.tracks]
        self.sheet.bars = [(tick, self.metres[name]) for name, tick in self.starts.items()]
        self.sheet.keys = list(self.keys.values())
        ties_on = {*self.ties.values()}
        for name, onset in self.onsets.items():
            part, pitch = self.notes.get(name, (0, None))
            end = self.ends.get(name, 0)
            if pitch is not None and end > onset:
                first = self.ties.get(name, "")
                is_same = self.notes.get(first, (0, None))[1] == pitch
                is_tied = is_same and self.ends.get(first) == onset
                note = Note(onset, end - onset, pitch, is_tied, name in ties_on)
                self.sheet.notes[part].append(note)
        ticks = [*(tick for tick, _ in self.sheet.bars), self.sheet.end]
        lengths = (after - tick for tick, after in pairwise(ticks))
        self.sheet.is_divided = is_divided(lengths, self.sheet.bars[0][1])
        num_signs = sum(each.tag in _REPEATS for each in root.iter())
        counts = {
            "signs of repeated beats or bars ignored": num_signs,
            "microtones rounded": self.num_microtones,
        }
        self.sheet.repairs += [pluralize(count, what) for what, count in counts.items() if count]
        bar_ends = dict(zip(self.starts, ticks[1:], strict=True))
        for measure in root.iter("measure"):
            if measure.get("right") == "dbl" and measure.get(_ID, "") in bar_ends:
                self.sheet.markers.append((0, bar_ends[measure.get(_ID, "")], DOUBLE_BAR))
        self._add_tempi_and_fermatas()
        return self.sheet

    def _add_tempi_and_fermatas(self) -> None:
        for sign, bar in self.signs:
            tick, note = self._tick(sign, bar), self.notes.get(sign.get("startid", "")[1:])
            part = self.parts.get(sign.get("staff", "")) if note is None else note[0]
            if sign.tag == "tempo":
                self._add_tempo(self.starts.get(bar) if tick is None else tick, _bpm(sign))
            elif sign.tag == "fermata" and tick is not None and part is not None:
                self.sheet.markers.append((part, tick, FERMATA))

    def _move_octaves(self) -> None:
        """Move the notes below or above signs such as 8va to where they sound."""
        begins = {
            staff: sorted((self.onsets[name], name) for name in names if name in self.onsets)
            for staff, names in self.written.items()
        }
        for sign, bar in self.signs:
            start, end = self._tick(sign, bar), self._tick(sign, bar, "endid", "tstamp2")
            notes = begins.get(sign.get("staff", ""), [])
            if sign.tag != "octave" or start is None or end is None:
                continue
            octaves = {"8": 12, "15": 24, "22": 36}.get(sign.get("dis", "8"), 0)
            semitones = -octaves if sign.get("dis.place") == "below" else octaves
            for _, name in notes[bisect_left(notes, (start,)) : bisect_left(notes, (end + 1,))]:
                part, pitch = self.notes[name]
                self.notes[name] = part, None if pitch is None else pitch + semitones

    def _tick(
        self, sign: Element, bar: str, note: str = "startid", moment: str = "tstamp"
    ) -> int | None:
        """Return where the note of a sign begins, else its beat; None without either."""
        tick = self.onsets.get(sign.get(note, "").removeprefix("#"))
        return self._moment(bar, sign.get(moment, "")) if tick is None else tick

    def _moment(self, bar: str, text: str) -> int | None:
        """Return the tick of a beat such as `3.5`, or `1m+2`: of the next bar; None without one."""
        match = re.fullmatch(r"(?:(\d{1,4})m\s*\+\s*)?(\d{1,4}(?:\.\d{0,6})?)", text)
        bars = list(self.starts)
        if match is None or bar not in self.starts:
            return None
        number = bars.index(bar) + int(match[1] or 0)
        if number >= len(bars):
            return self.sheet.end
        quarters = (float(match[2]) - 1) * 4 / self.metres[bars[number]][1]
        return self.starts[bars[number]] + round(max(0.0, quarters) * TICKS_PER_BEAT)

    def read(self, element: Element) -> None:
        """Read an element and all that it contains."""
        staff_before = self.staff
        if element.tag in ("staffDef", "staff"):
            self.staff = element.get("n", "")
        self._read_one(element)
        for child in element:
            self.read(child)
        self.staff = staff_before

    def _read_one(self, element: Element) -> None:
        """Read an element without what it contains."""
        match element.tag:
            case "staffGrp" | "staffDef" | "scoreDef" | "meterSig" | "keySig" | "clef":
                self._read_definition(element)
            case "measure":
                self._begin_bar(element.get(_ID, ""))
            case "chord" | "note" | "rest" | "mRest" | "space" | "mSpace":
                self._read_note(element)
            case "syl":
                part = self.parts[self.staff]
                if [*self.parts.values()].count(part) == 1:
                    self.sheet.tracks[part].program = CHOIR_AAHS
            case "tie":
                self.ties[element.get("endid", "")[1:]] = element.get("startid", "")[1:]
            case "octave" | "tempo" | "fermata":
                self.signs.append((element, self.bar))

    def _begin_bar(self, name: str) -> None:
        """Begin a bar in the metre, the keys and the tempo that were printed before it."""
        self.bar = name
        self.metres[name] = self.metre
        for staff in list(self.new_keys):
            self._begin_key(staff, self.starts.get(name))
        if self.new_bpm is not None:
            self._add_tempo(self.starts.get(name), self.new_bpm)
            self.new_bpm = None

    def _read_definition(self, element: Element) -> None:
        """Read parts, clefs, metres, keys and transpositions."""
        if element.tag in ("staffGrp", "staffDef"):
            self._add_part(element)
        semitones = element.get("trans.semi")
        if element.tag == "staffDef" and semitones is not None:
            self.semitones[self.staff] = int(semitones)
            if self.staff in self.printed_keys:
                self.new_keys[self.staff] = self.printed_keys[self.staff]
        if "perc" in (element.get("shape"), element.get("clef.shape")):
            self.drums.add(self.staff)
        self.metre = _metre(element) or self.metre
        if element.tag == "staffDef" and self.common_key is not None:
            self.new_keys.setdefault(self.staff, self.common_key)
        key = _read_key(element)
        if key is not None and self.staff:
            self.new_keys[self.staff] = key
        elif key is not None:
            self.common_key = None if self.parts else key
            self.new_keys |= dict.fromkeys(self.parts, key)
        if element.tag == "scoreDef" and element.get("midi.bpm"):
            self.new_bpm = float(element.attrib["midi.bpm"])

    def _add_part(self, element: Element) -> None:
        """Add the part of a staff, or of staves that a brace joins, unless it is there."""
        names = [staff.get("n", "") for staff in element.iter("staffDef")]
        signs = [element.get("symbol"), *(each.get("symbol") for each in element.findall("grpSym"))]
        labels = {"".join(label.itertext()) for label in element.findall(".//staffDef/label")}
        # Some braces join several instruments.
        is_part = element.tag == "staffDef" or ("brace" in signs and len(labels) < 2)
        if not is_part or not names or names[0] in self.parts:
            return
        label = element.find(".//label")
        name = "" if label is None else " ".join(" ".join(label.itertext()).split())
        instrument = element.find(".//instrDef")
        program = 0 if instrument is None else int(instrument.get("midi.instrnum", 0))
        is_drum = any(each.get("midi.channel") == "9" for each in element.iter("instrDef"))
        track = Track(name, program if 0 <= program < 128 else 0, is_drum)
        tracks = self.sheet.tracks
        # Not all **kern files have braces.
        is_same = instrument is not None and [track] == tracks[-1:] and track.program in KEYBOARDS
        if not is_same:
            tracks.append(track)
        self.parts |= dict.fromkeys(names, len(tracks) - 1)
        if is_drum:
            self.drums |= {*names}

    def _begin_key(self, staff: str, tick: int | None) -> None:
        """Let the new key of a staff begin where a bar, a note or a rest does."""
        self.printed_keys[staff] = key = self.new_keys.pop(staff)
        if staff not in self.drums and tick is not None:
            self.keys[staff].append((tick, key.sounding(self.semitones[staff])))

    def _read_note(self, element: Element) -> None:
        name, part = element.get(_ID, ""), self.parts[self.staff]
        pitch = None
        if element.tag == "chord":  # its first note stands for it
            first = next(element.iter("note"), element).get(_ID, "")
            if first in self.onsets:
                self.onsets[name] = self.onsets[first]
        if self.staff in self.new_keys:
            self._begin_key(self.staff, self.onsets.get(name))
        if element.tag != "note" or element.get("cue") == "true":
            pass
        elif "pname" in element.attrib and self.staff not in self.drums:
            pitch = _pitch(element) + self.semitones[self.staff]
            self.num_microtones += bool(re.search("[qukd]", _accidental(element)))
            if "oct.ges" not in element.attrib:
                self.written[self.staff].append(name)
        elif element.attrib.keys() & {"pname", "loc", "pnum"}:
            self.sheet.tracks[part].is_drum = True
            pitch = self._drum(element)
        self.notes[name] = part, pitch

    def _drum(self, element: Element) -> int:
        """Return the drum of a note of percussion."""
        number = element.get("pnum", "")
        if re.fullmatch(r"\d{1,3}", number):
            return int(number)
        self.sheet.num_guessed += 1
        if "loc" not in element.attrib:
            return _pitch(element)
        octave, step = divmod(int(element.attrib["loc"]) + 2, 7)  # 0 is the lowest line, E4
        return DRUMS.get(f"{'CDEFGAB'[step]}{octave + 4}", SNARE)

    def _add_tempo(self, tick: int | None, bpm: float) -> None:
        if tick is not None and 4 <= bpm <= 1000:
            self.sheet.tempos.append((tick, bpm))


def _bpm(tempo: Element) -> float:
    """Return the quarter notes a minute of a tempo; 0 of one in words."""
    if match := re.fullmatch(r"\d{1,4}(\.\d*)?", tempo.get("mm", "")):
        unit = 4 / float(tempo.get("mm.unit", 4))
        return float(match[0]) * unit * (2 - 0.5 ** int(tempo.get("mm.dots", 0)))
    if match := re.search(r"\[?(\w+)(-dot|\.)?\s*=\s*(\d{1,4})", "".join(tempo.itertext())):
        dotted = 1.5 if match[2] else 1
        return float(match[3]) * _BEATS.get(match[1], 1) * dotted
    return float(tempo.get("midi.bpm", 0))


def _pitch(note: Element) -> int:
    """Return the pitch that sounds, which MEI may tell apart from the printed one."""
    step = PITCH_CLASSES.index(note.attrib["pname"].upper())
    octave = int(note.get("oct.ges", note.get("oct", 4)))
    alters = [{"s": 1, "x": 2, "f": -1}.get(sign, 0) for sign in _accidental(note)]
    return 12 * (octave + 1) + step + sum(alters)


def _accidental(note: Element) -> str:
    """Return the accidental of a note as it sounds, such as `ff`, or `1qs` of a microtone."""
    signs = [note, *note.findall("accid")]
    names = [sign.get(key, "") for key in ("accid.ges", "accid") for sign in signs]
    return next(filter(None, names), "")


def _metre(element: Element) -> Metre | None:
    """Return the metre that an element prints."""
    prefix = "" if element.tag == "meterSig" else "meter."
    if beats := element.get(f"{prefix}count"):
        count, unit = sum(int(x) for x in beats.split("+")), int(element.get(f"{prefix}unit", 4))
        if not 0 < count < 256 or unit not in (1, 2, 4, 8, 16, 32, 64, 128):
            raise ValueError(f"a time signature of {count}/{unit}")
        return count, unit
    return {"common": (4, 4), "cut": (2, 2)}.get(element.get(f"{prefix}sym", ""))


def _read_key(element: Element) -> PrintedKey | None:
    """Return the key signature that an element prints; None if it prints none."""
    names = ("sig", "mode") if element.tag == "keySig" else ("keysig", "key.mode")
    signature, mode = (element.get(name, "") for name in names)
    if accidentals := element.findall("keyAccid"):
        signs = [sign.get("accid") for sign in accidentals]
        return PrintedKey(signs.count("s") - signs.count("f"), mode == "minor")
    if not re.fullmatch(r"0|[1-7][sf]", signature):
        return None
    fifths = int(signature[0]) * (-1 if signature[-1] == "f" else 1)
    return PrintedKey(fifths, mode == "minor")
