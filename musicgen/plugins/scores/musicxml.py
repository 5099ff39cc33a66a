"""MusicXML (4.0, partwise and timewise) as a `Sheet`.

Durations alone say when notes sound: types, dots, beams and brackets are print. Grace notes and
cue notes are silent.
"""

import re
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from xml.etree.ElementTree import Element

from musicgen.midi.key import transposed_marker
from musicgen.midi.score import CHOIR_AAHS, DOUBLE_BAR, FERMATA, PITCH_CLASSES, Track
from musicgen.plugins.scores.bars_and_repeats import (
    CODA,
    DRUMS,
    KEYBOARDS,
    SEGNO,
    SNARE,
    TO_CODA,
    Bar,
    Metre,
    Note,
    PrintedKey,
    bar_length,
    read_endings,
    read_mark,
    sounding_fifths,
)
from musicgen.plugins.scores.sheet import Sheet, join_parts
from musicgen.text import pluralize

_ROUNDING = Fraction(1, 32)
"""Quarters; a bar differs by less from its metre if the durations of its tuplets are rounded."""
_UNITS = {"whole": 4, "half": 2, "quarter": 1, "eighth": 0.5, "16th": 0.25, "32nd": 0.125}
QUALITIES = {  # of chords, by their kinds; other kinds are major, and ninths as sevenths
    "minor": "m",
    "augmented": "+",
    "diminished": "o",
    "dominant": "7",
    "dominant-seventh": "7",
    "major-seventh": "M7",
    "minor-seventh": "m7",
    "diminished-seventh": "o7",
    "augmented-seventh": "7",
    "half-diminished": "/o7",
    "major-minor": "m",
    "minor-sixth": "m",
    "suspended-second": "sus2",
    "suspended-fourth": "sus4",
}


def read_musicxml(root: Element, repeats: bool) -> Sheet:
    """Return the music of a file; see `join_parts` for `repeats`.

    Raises:
        ValueError: the file is not MusicXML, or has times or pitches that cannot be.
    """
    if root.tag not in ("score-partwise", "score-timewise"):
        raise ValueError(f"no MusicXML: it begins with {root.tag[:40]}")
    bars = defaultdict[str, list[Element]](list)  # of each part
    for part in root.iter("part"):
        is_bar = root.tag == "score-timewise"
        bars[part.get("id", "")] += [part] if is_bar else part.findall("measure")
    instruments = {each.get("id", ""): each for each in root.iter("score-part")}
    readers = list[_PartReader]()
    for name, measures in bars.items():
        reader = _PartReader(instruments.get(name, Element("score-part")))
        for measure in measures:
            reader.read_bar(measure)
        if reader.has_words and reader.num_staves == 1:
            reader.track.program = CHOIR_AAHS
        readers.append(reader)
    parts = [(reader.track, reader.bars) for reader in readers]
    for reader in readers:
        for program, others in reader.others.items():
            parts.append((replace(reader.track, program=program), others))
    sheet = join_parts(parts, repeats)
    if num_microtones := sum(reader.num_microtones for reader in readers):
        sheet.repairs.append(pluralize(num_microtones, "microtones rounded"))
    sheet.num_guessed = sum(reader.num_guessed for reader in readers)
    _join_braces(root, list(bars), sheet)
    return sheet


def _join_braces(root: Element, names: list[str], sheet: Sheet) -> None:
    """Join the parts in each brace as the staves of one instrument."""
    groups, members = list[list[str]](), list[str]()
    for each in root.findall("part-list/*"):
        if each.tag == "part-group" and each.findtext("group-symbol") == "brace":
            members = []
            groups.append(members)
        elif each.tag == "part-group" and each.get("type") == "stop":
            members = []
        elif each.tag == "score-part":
            members.append(each.get("id", ""))
    for group in groups:
        places = [names.index(name) for name in group if name in names]
        tracks = [sheet.tracks[place] for place in places]
        labels = {track.name for track in tracks if track.name}
        is_one = len(labels) < 2 and all(track.program in KEYBOARDS for track in tracks)
        for place in reversed(places[1:]) if is_one else ():
            sheet.notes[places[0]] += sheet.notes.pop(place)
            sheet.tracks.pop(place)
            names.pop(place)


class _PartReader:
    """Reads a part bar by bar.

    Attributes:
        track: its name and instrument, without notes.
        drums: pitches of unpitched notes, by the names of their instruments.
        divisions: of a quarter.
        at: where the next note begins, in quarters from the beginning of its bar.
        onset: where the last one began, for the other notes of its chord.
        key: the key signature of the part as it is printed.
        semitones: from what is printed to what sounds.
        endings: of the bars that follow.
        num_repeated: how many bars a sign repeats; 0: none.
        doubling: semitones from each note to one that sounds with it; 0: none does.
        programs: of the instruments of the part, by their names.
        program: to which the part has changed; None: its own.
        others: bars of the notes of each other program.
        num_guessed: drums whose instrument the file does not tell.
        num_microtones: notes whose pitches are no semitones.
    """

    def __init__(self, instrument: Element) -> None:
        name = " ".join((instrument.findtext("part-name") or "").split())
        program = _midi_number(instrument.findtext(".//midi-program"))
        is_drum = any(each.text == "10" for each in instrument.iter("midi-channel"))
        self.track = Track(name, program or 0, is_drum)
        self.drums = dict[str, int]()
        self.programs = dict[str, int]()
        for each in instrument.iter("midi-instrument"):
            self._read_instrument(each)
        self.program: int | None = None
        self.others = defaultdict[int, list[Bar]](list)
        self.bars = list[Bar]()
        self.bar = Bar(None)
        self.divisions = Fraction(1)
        self.at = self.onset = Fraction(0)
        self.metre: Metre | None = None
        self.key: PrintedKey | None = None
        self.semitones = 0
        self.endings = frozenset[int]()
        self.num_repeated = self.doubling = 0
        self.num_guessed = self.num_microtones = 0
        self.has_words = False
        self.num_staves = 1

    def _read_instrument(self, element: Element) -> int | None:
        """Take note of the drum and the program of an instrument; return the program."""
        name, drum = element.get("id", ""), _midi_number(element.findtext("midi-unpitched"))
        program = _midi_number(element.findtext("midi-program"))
        if drum is not None:
            self.drums[name] = drum
        if program is not None:
            self.programs[name] = program
        return program

    def read_bar(self, measure: Element) -> None:
        """Read the elements of a bar."""
        self.bar = Bar(self.metre, endings=self.endings)
        self.at = Fraction(0)
        for element in measure:
            match element.tag:
                case "note":
                    self._read_note(element)
                case "backup":
                    self._move(-self._duration(element))
                case "forward":
                    self._move(self._duration(element))
                case "attributes":
                    self._read_attributes(element)
                case "direction" | "sound":
                    self._read_direction(element)
                case "harmony":
                    self._read_harmony(element)
                case "barline":
                    self._read_barline(element)
        self._end_bar()

    def _end_bar(self) -> None:
        if 0 < self.num_repeated <= len(self.bars) and not self.bar.notes:
            self.bar.notes = list(self.bars[-self.num_repeated].notes)
        if self.bar.metre is not None:
            full = bar_length(self.bar.metre)
            if abs(self.bar.length - full) < _ROUNDING:
                self.bar.length = full
        self.bars.append(self.bar)

    def _duration(self, element: Element) -> Fraction:
        """Return the duration of a note or a move, in quarters."""
        return _number(element.findtext("duration"), "a duration") / self.divisions

    def _move(self, quarters: Fraction) -> None:
        self.at = max(self.at + quarters, Fraction(0))
        self.bar.length = max(self.bar.length, self.at)

    def _place(self, element: Element) -> Fraction:
        """Return where in its bar a direction or a harmony stands, in quarters."""
        offset = _number(element.findtext("offset"), "an offset", sign=True)
        return max(self.at + offset / self.divisions, Fraction(0))

    def _read_note(self, note: Element) -> None:
        if note.find("grace") is not None:
            return
        duration = self._duration(note)
        is_in_chord = note.find("chord") is not None
        if not is_in_chord:
            self.onset = self.at
        pitch = self._pitch(note)
        if pitch is not None and duration and note.find("cue") is None:
            ties = {tie.get("type") for tie in [*note.findall("tie"), *note.iter("tied")]}
            sounding = Note(self.onset, duration, pitch, "stop" in ties, "start" in ties)
            notes = self._notes_for(note)
            notes.append(sounding)
            if self.doubling and note.find("pitch") is not None:
                notes.append(sounding._replace(pitch=pitch + self.doubling))
        if note.find("notations/fermata") is not None:
            self.bar.markers.append((self.onset, FERMATA))
        if note.find("lyric") is not None:
            self.has_words = True
        if not is_in_chord:
            self._move(duration)

    def _notes_for(self, note: Element) -> list[Note[Fraction]]:
        """Return the notes of the bar that have the program of a note."""
        instrument = note.find("instrument")
        name = "" if instrument is None else instrument.get("id", "")
        program = self.programs.get(name, self.program) if name else self.program
        if program in (None, self.track.program) or self.track.is_drum:
            return self.bar.notes
        bars = self.others[program]
        bars += [Bar(None) for _ in range(len(self.bars) + 1 - len(bars))]
        return bars[-1].notes

    def _pitch(self, note: Element) -> int | None:
        """Return the pitch that sounds; None of a rest."""
        pitch = note.find("pitch")
        if pitch is not None:
            step, octave = pitch.findtext("step") or "", pitch.findtext("octave") or ""
            alter = _number(pitch.findtext("alter"), "an alteration", sign=True)
            if not re.fullmatch(r"[A-G] -?\d", f"{step} {octave}"):
                raise ValueError("a note without a pitch")
            self.num_microtones += alter.denominator > 1
            semitones = round(alter) + self.semitones
            return 12 * (int(octave) + 1) + PITCH_CLASSES.index(step) + semitones
        unpitched, instrument = note.find("unpitched"), note.find("instrument")
        if unpitched is None:
            return None
        self.track.is_drum = True
        name = "" if instrument is None else instrument.get("id", "")
        if len(self.drums) == 1 and not name:
            return next(iter(self.drums.values()))
        if name in self.drums:
            return self.drums[name]
        self.num_guessed += 1
        line = f"{unpitched.findtext('display-step')}{unpitched.findtext('display-octave')}"
        return DRUMS.get(line, SNARE)

    def _read_attributes(self, attributes: Element) -> None:
        if attributes.findtext("divisions"):
            self.divisions = _number(attributes.findtext("divisions"), "divisions")
            if not self.divisions:
                raise ValueError("0 divisions of a quarter")
        if attributes.findtext("staves"):
            self.num_staves = int(_number(attributes.findtext("staves"), "staves"))
        time, key = attributes.find("time"), attributes.find("key")
        if time is not None:
            self.metre = _read_metre(time)
            if not self.at:
                self.bar.metre = self.metre
        transpose = attributes.find("transpose")
        if transpose is not None:
            chromatic = _number(transpose.findtext("chromatic"), "a transposition", sign=True)
            octaves = _number(transpose.findtext("octave-change"), "octaves", sign=True)
            self.semitones = round(chromatic) + 12 * round(octaves)
            double = transpose.find("double")
            self.doubling = 0 if double is None else 12 if double.get("above") == "yes" else -12
        if key is not None:
            self.key = _read_key(key)
        if self.key is not None and (key is not None or transpose is not None):
            self.bar.keys.append((self.at, self.key.sounding(self.semitones)))
        repeat = attributes.find("measure-style/measure-repeat")
        if repeat is not None:
            text = (repeat.text or "1").strip()
            is_start = repeat.get("type") == "start" and text.isdecimal()
            self.num_repeated = int(text[:4]) if is_start else 0

    def _read_direction(self, direction: Element) -> None:
        """Apply a tempo, and marks of D.C. and D.S.: of a sound, else as printed."""
        at = self._place(direction)
        sound = direction if direction.tag == "sound" else direction.find("sound")
        attributes = {} if sound is None else sound.attrib
        for change in [] if sound is None else sound.findall("midi-instrument"):
            program = self._read_instrument(change)
            self.program = self.program if program is None else program
        marks = {read_mark(name): value for name, value in attributes.items() if value}
        if not any(marks):
            marks = {read_mark(each.text or ""): "" for each in direction.iter("words")}
        if not any(marks) and direction.find("direction-type/segno") is not None:
            marks = {SEGNO: ""}
        if not any(marks) and direction.find("direction-type/coda") is not None:
            marks = {TO_CODA if self.at else CODA: ""}
        self.bar.marks |= {mark: name for mark, name in marks.items() if mark}
        if tempo := attributes.get("tempo"):
            self._add_tempo(tempo, at)
            return
        for metronome in direction.iter("metronome"):
            unit = _UNITS.get(metronome.findtext("beat-unit") or "", 0)
            dots = len(metronome.findall("beat-unit-dot"))
            match = re.search(r"\d{1,4}(\.\d{1,4})?", metronome.findtext("per-minute") or "")
            if match and unit:
                self._add_tempo(str(float(match[0]) * unit * (2 - 0.5**dots)), at)

    def _add_tempo(self, text: str, at: Fraction) -> None:
        if re.fullmatch(r"\s*\d{1,4}(\.\d*)?\s*", text) and float(text) >= 4:
            self.bar.tempos.append((at, float(text)))

    def _read_harmony(self, harmony: Element) -> None:
        """Add the marker of a chord symbol, or of no chord; one without a root is left out."""
        kind = re.sub("-(ninth|11th|13th)$", "-seventh", harmony.findtext("kind") or "")
        root, bass = _note_of_chord(harmony, "root"), _note_of_chord(harmony, "bass")
        if root or kind == "none":
            marker = f"{root}_{QUALITIES.get(kind, 'M')}_{bass or root}"
            marker = "N_N_N" if kind == "none" else marker
            sounding = transposed_marker(marker, sounding_fifths(0, self.semitones))
            self.bar.markers.append((self._place(harmony), sounding))

    def _read_barline(self, barline: Element) -> None:
        ending, repeat = barline.find("ending"), barline.find("repeat")
        if barline.findtext("bar-style") == "light-light" and self.bar.length:
            self.bar.markers.append((self.bar.length, DOUBLE_BAR))
        if ending is not None and ending.get("type") == "start":
            self.endings = self.bar.endings = read_endings(ending.get("number", ""))
        elif ending is not None:
            self.endings = frozenset()
        if repeat is not None and repeat.get("direction") == "forward":
            self.bar.opens = True
        elif repeat is not None:
            times = repeat.get("times", "")
            self.bar.times = int(times) if re.fullmatch(r"[2-9]|\d\d", times) else 2


def _midi_number(text: str | None) -> int | None:
    """Return a program or a pitch, which files count from 1; None outside 1 to 128."""
    number = int(text) if text and re.fullmatch(r"\d{1,3}", text) else 0
    return number - 1 if 1 <= number <= 128 else None


def _number(text: str | None, what: str, *, sign: bool = False, default: str = "0") -> Fraction:
    """Return the number of a few digits in the text of an element.

    Raises:
        ValueError: the text is no such number.
    """
    text = (text or default).strip()
    if not re.fullmatch(r"\d{1,9}(\.\d{0,9})?", text.removeprefix("-") if sign else text):
        raise ValueError(f"{what} of {text[:20]!r}")
    return Fraction(text.removesuffix("."))


def _note_of_chord(harmony: Element, name: str) -> str:
    """Return the root or the bass of a chord symbol, such as Bb; empty if it has none."""
    step = (harmony.findtext(f"{name}/{name}-step") or "").strip()
    alter = (harmony.findtext(f"{name}/{name}-alter") or "").strip()
    signs = {"2": "##", "1": "#", "-1": "b", "-2": "bb"}
    return step + signs.get(alter, "") if step in [*"ABCDEFG"] else ""


def _read_metre(time: Element) -> Metre | None:
    """Return a metre, of several numbers their sum; None without one."""
    total, smallest = Fraction(0), 1
    for beats, beat_type in zip(time.findall("beats"), time.findall("beat-type"), strict=False):
        unit = int(_number(beat_type.text, "a beat"))
        if unit not in (1, 2, 4, 8, 16, 32, 64, 128):
            raise ValueError(f"a beat of 1/{unit}")
        counts = (beats.text or "").split("+")
        total += sum(int(_number(each, "beats", default="")) for each in counts) / Fraction(unit)
        smallest = max(smallest, unit)
    return (int(total * smallest), smallest) if total else None


def _read_key(key: Element) -> PrintedKey:
    if (text := key.findtext("fifths")) is not None:
        fifths = int(_number(text, "a key", sign=True, default=""))
    else:
        alters = key.iter("key-alter")
        fifths = sum(int(_number(each.text, "a key", sign=True)) for each in alters)
    if abs(fifths) > 7:
        raise ValueError(f"a key of {abs(fifths)} signs")
    return PrintedKey(fifths, key.findtext("mode", "").strip() == "minor")
