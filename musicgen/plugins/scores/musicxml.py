"""MusicXML (4.0, partwise and timewise) as a `Sheet`.

Durations alone say when notes sound: types, dots, beams and brackets are print. Grace notes and
cue notes are silent.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from xml.etree.ElementTree import Element

from musicgen.midi.key import transposed_marker
from musicgen.midi.score import CHOIR_AAHS, Track
from musicgen.plugins.scores.drum_staff import drum_on_staff
from musicgen.plugins.scores.musicxml_values import (
    marker_of_harmony,
    marks_of_direction,
    marks_of_sound,
    read_fifths,
    read_metre,
    read_number,
)
from musicgen.plugins.scores.parts import join_parts
from musicgen.plugins.scores.play_order import read_endings
from musicgen.plugins.scores.sheet import Metre, Sheet, sounding_fifths
from musicgen.plugins.scores.sheet_bars import Bar, BarEvent, BarNote, Part

_STEPS = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11}
_UNITS = {"whole": 4, "half": 2, "quarter": 1, "eighth": 0.5, "16th": 0.25, "32nd": 0.125}
_KEYBOARDS = 8  # programs below


def read_musicxml(root: Element, repeats: bool) -> Sheet:
    """Return the music of a file; see `join_parts` for `repeats`.

    Raises:
        ValueError: it is no MusicXML, or has times or pitches that cannot be.
    """
    if root.tag not in ("score-partwise", "score-timewise"):
        raise ValueError(f"no MusicXML: it begins with {root.tag[:40]}")
    instruments = {each.get("id", ""): each for each in root.iter("score-part")}
    parts, drums = list[Part](), 0
    for name, bars in _bars_of_parts(root).items():
        reader = _PartReader(_track(instruments.get(name)), _drum_pitches(instruments.get(name)))
        for bar in bars:
            reader.read_bar(bar)
        parts.append(reader.finish())
        drums += reader.num_guessed
    sheet = join_parts(parts, repeats)
    _join_braces(root, list(_bars_of_parts(root)), sheet)
    if drums:
        sheet.repairs.append(f"{drums:,} drums without an instrument placed by their lines")
    return sheet


def _bars_of_parts(root: Element) -> dict[str, list[Element]]:
    """Return the `measure` elements of each part, or in a timewise file what stands for them."""
    parts = dict[str, list[Element]]()
    if root.tag == "score-partwise":
        for part in root.findall("part"):
            parts.setdefault(part.get("id", ""), []).extend(part.findall("measure"))
        return parts
    for measure in root.findall("measure"):
        for part in measure.findall("part"):
            parts.setdefault(part.get("id", ""), []).append(part)
    return parts


def _track(instrument: Element | None) -> Track:
    """Return the name and the program of a part."""
    if instrument is None:
        return Track()
    name = " ".join((instrument.findtext("part-name") or "").split())
    programs = [each.text or "" for each in instrument.iter("midi-program")]
    channels = [each.text for each in instrument.iter("midi-channel")]
    program = int(programs[0]) - 1 if programs and re.fullmatch(r"\d{1,3}", programs[0]) else 0
    return Track(name, program if 0 <= program < 128 else 0, "10" in channels)


def _drum_pitches(instrument: Element | None) -> dict[str, int]:
    """Return the pitches of the drums of a part, by the names of its instruments."""
    pitches = dict[str, int]()
    for each in [] if instrument is None else instrument.iter("midi-instrument"):
        number = each.findtext("midi-unpitched") or ""
        if re.fullmatch(r"\d{1,3}", number) and 1 <= int(number) <= 128:
            pitches[each.get("id", "")] = int(number) - 1
    return pitches


def _join_braces(root: Element, names: list[str], sheet: Sheet) -> None:
    """Join the parts that a brace joins as the staves of one instrument."""
    members, groups = list[str](), list[list[str]]()
    is_open = False
    for each in root.findall("part-list/*"):
        if each.tag == "part-group" and each.findtext("group-symbol") == "brace":
            is_open, members = True, []
            groups.append(members)
        elif each.tag == "part-group" and each.get("type") == "stop":
            is_open = False
        elif each.tag == "score-part" and is_open:
            members.append(each.get("id", ""))
    for group in groups:
        places = [names.index(name) for name in group if name in names]
        tracks = [sheet.tracks[place] for place in places]
        labels = {track.name for track in tracks if track.name}
        is_one = len(labels) < 2 and all(track.program < _KEYBOARDS for track in tracks)
        for place in reversed(places[1:]) if is_one else ():
            sheet.notes[places[0]] += sheet.notes.pop(place)
            sheet.tracks.pop(place)
            names.pop(place)


@dataclass
class _PartReader:
    """A part, and where in it the reader is.

    Attributes:
        drums: pitches of unpitched notes, by the names of their instruments.
        divisions: of a quarter.
        at: where the next note begins, in quarters from its bar's first.
        onset: where the last one began, for the other notes of its chord.
        written: the key signature of the part as it is printed.
        semitones: from what is printed to what sounds.
        ending: of the bars that follow.
        repeated: how many bars a sign repeats; 0: none.
        num_guessed: drums whose instrument the file does not tell.
    """

    track: Track
    drums: dict[str, int]
    bars: list[Bar] = field(default_factory=list)
    bar: Bar = field(default_factory=lambda: Bar(None))
    divisions: Fraction = Fraction(1)
    at: Fraction = Fraction(0)
    onset: Fraction = Fraction(0)
    state: "_PartState" = field(default_factory=lambda: _PartState())
    num_guessed: int = 0

    def read_bar(self, measure: Element) -> None:
        """Read the elements of a bar."""
        self.bar = Bar(self.state.metre, endings=self.state.ending)
        self.at = Fraction(0)
        readers: dict[str, Callable[[Element], None]] = {
            "note": self._read_note,
            "backup": self._read_backup,
            "forward": self._read_forward,
            "attributes": self._read_attributes,
            "direction": self._read_direction,
            "sound": self._read_sound,
            "harmony": self._read_harmony,
            "barline": self._read_barline,
        }
        for element in measure:
            if element.tag in readers:
                readers[element.tag](element)
        count = self.state.repeated
        if count and not self.bar.notes and len(self.bars) >= count:
            self.bar.notes = list(self.bars[-count].notes)
        self.bars.append(self.bar)

    def finish(self) -> Part:
        """Return the part; a single staff with words is a choir."""
        if self.state.has_words and self.state.num_staves == 1:
            self.track.program = CHOIR_AAHS
        return Part(self.track, self.bars)

    def _duration(self, element: Element) -> Fraction:
        """Return the duration of a note or a move, in quarters."""
        return read_number(element.findtext("duration") or "0", "a duration") / self.divisions

    def _go_to(self, at: Fraction) -> None:
        self.at = max(at, Fraction(0))
        self.bar.length = max(self.bar.length, self.at)

    def _read_backup(self, element: Element) -> None:
        self._go_to(self.at - self._duration(element))

    def _read_forward(self, element: Element) -> None:
        self._go_to(self.at + self._duration(element))

    def _read_note(self, note: Element) -> None:
        if note.find("grace") is not None:
            return
        duration = self._duration(note)
        if note.find("chord") is None:
            self.onset = self.at
        pitch = self._pitch(note)
        if pitch is not None and duration and note.find("cue") is None:
            ties = {tie.get("type") for tie in [*note.findall("tie"), *note.iter("tied")]}
            is_tied, ties_on = "stop" in ties, "start" in ties
            self.bar.notes.append(BarNote(self.onset, duration, pitch, is_tied, ties_on))
        if note.find("notations/fermata") is not None:
            self.bar.events.append(BarEvent(self.onset, "fermata"))
        if note.find("lyric") is not None:
            self.state.has_words = True
        if note.find("chord") is None:
            self._go_to(self.at + duration)

    def _pitch(self, note: Element) -> int | None:
        """Return the pitch that sounds; None of a rest."""
        pitch = note.find("pitch")
        if pitch is not None:
            step, octave = pitch.findtext("step") or "", pitch.findtext("octave") or ""
            alter = read_number(pitch.findtext("alter") or "0", "an alteration", sign=True)
            if step not in _STEPS or not re.fullmatch(r"-?\d", octave):
                raise ValueError("a note without a pitch")
            semitones = round(alter) + self.state.semitones
            return 12 * (int(octave) + 1) + _STEPS[step] + semitones
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
        line = unpitched.findtext("display-step"), unpitched.findtext("display-octave")
        return drum_on_staff(f"{line[0]}{line[1]}")

    def _read_attributes(self, attributes: Element) -> None:
        if divisions := attributes.findtext("divisions"):
            self.divisions = read_number(divisions, "divisions")
            if not self.divisions:
                raise ValueError("0 divisions of a quarter")
        if staves := attributes.findtext("staves"):
            self.state.num_staves = int(read_number(staves, "staves"))
        time = attributes.find("time")
        if time is not None:
            self.state.metre = read_metre(time)
            if not self.at:
                self.bar.metre = self.state.metre
        key, transpose = attributes.find("key"), attributes.find("transpose")
        if transpose is not None:
            chromatic = read_number(
                transpose.findtext("chromatic") or "0", "a transposition", sign=True
            )
            octaves = read_number(transpose.findtext("octave-change") or "0", "octaves", sign=True)
            self.state.semitones = round(chromatic) + 12 * round(octaves)
        if key is not None:
            self.state.written = read_fifths(key)
        if self.state.written is not None and (key is not None or transpose is not None):
            sounding = sounding_fifths(self.state.written, self.state.semitones)
            self.bar.events.append(BarEvent(self.at, "key", sounding))
        repeat = attributes.find("measure-style/measure-repeat")
        if repeat is not None:
            text = (repeat.text or "1").strip()
            is_start = repeat.get("type") == "start" and text.isdecimal()
            self.state.repeated = int(text[:4]) if is_start else 0

    def _read_direction(self, direction: Element) -> None:
        at = self.at + self._offset(direction)
        sound = direction.find("sound")
        self.bar.marks |= marks_of_direction(direction, self.at)
        if sound is not None and sound.get("tempo"):
            self._add_tempo(sound.get("tempo", ""), at)
            return
        for metronome in direction.iter("metronome"):
            unit = _UNITS.get(metronome.findtext("beat-unit") or "", 0)
            dots = len(metronome.findall("beat-unit-dot"))
            match = re.search(r"\d{1,4}(\.\d{1,4})?", metronome.findtext("per-minute") or "")
            if match and unit:
                self._add_tempo(str(float(match[0]) * unit * (2 - 0.5**dots)), at)

    def _read_sound(self, sound: Element) -> None:
        self.bar.marks |= marks_of_sound(sound)
        self._add_tempo(sound.get("tempo", ""), self.at + self._offset(sound))

    def _offset(self, element: Element) -> Fraction:
        offset = read_number(element.findtext("offset") or "0", "an offset", sign=True)
        return max(offset / self.divisions, -self.at)

    def _add_tempo(self, text: str, at: Fraction) -> None:
        if re.fullmatch(r"\s*\d{1,4}(\.\d*)?\s*", text) and float(text) >= 4:
            self.bar.events.append(BarEvent(at, "tempo", float(text)))

    def _read_harmony(self, harmony: Element) -> None:
        marker = marker_of_harmony(harmony)
        if marker:
            sounding = transposed_marker(marker, sounding_fifths(0, self.state.semitones))
            self.bar.events.append(BarEvent(self.at + self._offset(harmony), "chord", sounding))

    def _read_barline(self, barline: Element) -> None:
        ending, repeat = barline.find("ending"), barline.find("repeat")
        if ending is not None and ending.get("type") == "start":
            self.state.ending = self.bar.endings = read_endings(ending.get("number", ""))
        elif ending is not None:
            self.state.ending = frozenset()
        if repeat is not None and repeat.get("direction") == "forward":
            self.bar.opens = True
        elif repeat is not None:
            times = repeat.get("times", "")
            self.bar.times = int(times) if re.fullmatch(r"[2-9]|\d\d", times) else 2


@dataclass
class _PartState:
    """What is in force from bar to bar: see `_PartReader`."""

    metre: Metre | None = None
    written: int | None = None
    semitones: int = 0
    ending: frozenset[int] = frozenset()
    repeated: int = 0
    has_words: bool = False
    num_staves: int = 1
