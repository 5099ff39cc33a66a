"""The parts of a score in MusicXML, bar by bar, with their staves and voices."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import lcm
from typing import NamedTuple
from xml.etree.ElementTree import Element, SubElement

from musicgen.midi.key import spelling
from musicgen.midi.score import KeySignature, Track, is_line
from musicgen.plugins.scores.bars_and_repeats import KEYBOARDS, Metre, bar_length
from musicgen.plugins.scores.written_signs import (
    CYMBALS,
    TYPES,
    accidentals,
    beams_of,
    clef_of,
    line_of_drum,
    spell,
)
from musicgen.plugins.scores.written_time import (
    Sound,
    Value,
    beat_starts,
    deal_to_voices,
    write_values,
)

_HARP, _MIDDLE_C = 46, 60
_WIDEST_TUNE = 24  # semitones that fit on a staff
_BEYOND = 7  # semitones from middle C, on the other staff's side of it
_VOICES_OF_STAFF = 4


class Bar(NamedTuple):
    """A bar. Times are in quarters from the beginning of the piece; the key is that in force.

    `line` is the style of the bar line at its end.
    """

    start: Fraction
    end: Fraction
    metre: Metre
    key: KeySignature
    line: str = "regular"


class Sign(NamedTuple):
    """An element that stands before the note that sounds at a time, with its offset if it has."""

    time: Fraction
    element: Element


class PartWriter:
    """Writes a part bar by bar.

    Attributes:
        staves: of each staff, the number of its first voice, and its voices.
        divisions: of a quarter.
        fermatas: where they stand.
        heads: what was written: the element, its value, and its pitch; None: a rest.
    """

    def __init__(
        self,
        track: Track,
        name: str,
        sounds: Sequence[Sound],
        bars: Sequence[Bar],
        signs: Iterable[Sign],
    ) -> None:
        self.track, self.name, self.bars = track, name, bars
        self.fermatas = frozenset[Fraction]()
        self.heads = list[tuple[Element, Value, int | None]]()
        self.staves = list[tuple[int, list[dict[int, list[Value]]]]]()
        first_voice = 1
        staves = _by_staff(track, sounds, bars)
        for own in staves:
            voices = [self._by_bar(voice) for voice in deal_to_voices(own)] or [{}]
            for index, bar in enumerate(bars):  # the first voice has rests where all are silent
                voices[0].setdefault(index, _write([], bar))
            self.staves.append((first_voice, voices))
            first_voice += max(_VOICES_OF_STAFF, len(voices))
        self.clefs = [
            clef_of(track, [pitch for sound in own for pitch in sound.pitches]) for own in staves
        ]
        starts = [bar.start for bar in bars]
        self.signs = defaultdict[int, list[Sign]](list)
        for sign in sorted(signs, key=lambda sign: sign.time):
            self.signs[max(0, bisect_right(starts, sign.time) - 1)].append(sign)
        voices = [voice for _, own in self.staves for voice in own]
        values = [value for voice in voices for own in voice.values() for value in own]
        self.divisions = lcm(*{(value.end - value.start).denominator for value in values})

    def _by_bar(self, voice: Sequence[Sound]) -> dict[int, list[Value]]:
        """Return the values of each bar in which a voice sounds, by its index."""
        starts, found = [bar.start for bar in self.bars], defaultdict[int, list[Sound]](list)
        for sound in voice:
            index = bisect_right(starts, sound.onset) - 1
            while index < len(starts) and starts[index] < sound.end:
                found[index].append(sound)
                index += 1
        return {index: _write(own, self.bars[index]) for index, own in found.items()}

    def starts(self) -> set[Fraction]:
        """Return where notes and printed rests begin."""
        return {
            self.bars[index].start + value.start
            for _, voices in self.staves
            for number, voice in enumerate(voices)
            for index, values in voice.items()
            for value in values
            if value.sound is not None or number == 0
        }

    def element(self) -> Element:
        """Return the part."""
        part = Element("part", id=self.name)
        for index, bar in enumerate(self.bars):
            is_short = bar.end - bar.start < bar_length(bar.metre)
            implicit = {"implicit": "yes"} if is_short else {}
            measure = SubElement(part, "measure", {"number": str(index + 1)} | implicit)
            self._write_attributes(measure, index)
            self._write_bar(measure, index)
            if bar.line != "regular":
                line = SubElement(measure, "barline", location="right")
                SubElement(line, "bar-style").text = bar.line
        return part

    def _write_attributes(self, measure: Element, index: int) -> None:
        """Write what changes with a bar: in the first all, later the key and the metre."""
        bar, before = self.bars[index], self.bars[index - 1] if index else None
        attributes = Element("attributes")
        if before is None:
            SubElement(attributes, "divisions").text = str(self.divisions)
        is_other_key = before is None or bar.key[1:] != before.key[1:]
        if is_other_key and not self.track.is_drum:
            key = SubElement(attributes, "key")
            SubElement(key, "fifths").text = str(bar.key.fifths)
            if bar.key.minor:
                SubElement(key, "mode").text = "minor"
        if before is None or bar.metre != before.metre:
            time = SubElement(attributes, "time")
            SubElement(time, "beats").text = str(bar.metre[0])
            SubElement(time, "beat-type").text = str(bar.metre[1])
        if before is None and len(self.staves) > 1:
            SubElement(attributes, "staves").text = str(len(self.staves))
        for number, clef in enumerate(self.clefs if before is None else (), start=1):
            names = {"number": str(number)} if len(self.staves) > 1 else {}
            printed = SubElement(attributes, "clef", names)
            SubElement(printed, "sign").text = clef.sign
            SubElement(printed, "line").text = str(clef.line)
            if clef.octaves:
                SubElement(printed, "clef-octave-change").text = str(clef.octaves)
        if len(attributes):
            measure.append(attributes)

    def _write_bar(self, measure: Element, index: int) -> None:
        """Write the voices of a bar, each from its beginning; the signs stand in the first."""
        bar, signs = self.bars[index], [*self.signs[index]]
        length, is_first = bar.end - bar.start, True
        for staff, (first_voice, voices) in enumerate(self.staves, start=1):
            values = [voice.get(index, []) for voice in voices]
            writer = _StaffWriter(self, bar, values, staff if len(self.staves) > 1 else 0)
            for number, own in enumerate(values):
                if not own:
                    continue
                if not is_first:
                    backup = SubElement(measure, "backup")
                    SubElement(backup, "duration").text = str(int(length * self.divisions))
                writer.write_voice(measure, number, first_voice + number, signs if is_first else [])
                is_first = False


def _write(sounds: Sequence[Sound], bar: Bar) -> list[Value]:
    return write_values(sounds, bar.start, bar.end - bar.start, bar.metre)


def _by_staff(track: Track, sounds: Sequence[Sound], bars: Sequence[Bar]) -> list[list[Sound]]:
    """Return the sounds of each staff: of keyboards above middle C, and below.

    A bar in which notes sound one after the other stays on one staff if it has room for it.
    """
    is_keyboard = track.program in KEYBOARDS or track.program in (*range(16, 21), _HARP)
    pitches = track.notes["pitch"]
    if track.is_drum or not is_keyboard or not pitches.min(initial=128) < _MIDDLE_C <= max(pitches):
        return [[*sounds]]
    if is_line(track.notes) and pitches.max() - pitches.min() <= _WIDEST_TUNE:
        return [[*sounds]]
    starts, by_bar = [bar.start for bar in bars], defaultdict[int, list[Sound]](list)
    for sound in sounds:
        by_bar[bisect_right(starts, sound.onset)].append(sound)
    staves: tuple[list[Sound], list[Sound]] = ([], [])
    for own in by_bar.values():
        split = _split_pitch(own)
        for sound in own:
            for staff, is_low in zip(staves, (False, True), strict=True):
                its = tuple(pitch for pitch in sound.pitches if (pitch < split) == is_low)
                if its:
                    staff.append(sound._replace(pitches=its))
    return [*staves]


def _split_pitch(sounds: Sequence[Sound]) -> int:
    """Return the lowest pitch of the upper staff in a bar."""
    onsets = {sound.onset for sound in sounds}
    pitches = sorted(pitch for sound in sounds for pitch in sound.pitches)
    if len(onsets) == len(pitches):
        middle = pitches[len(pitches) // 2]
        if middle < _MIDDLE_C and pitches[-1] <= _MIDDLE_C + _BEYOND:
            return pitches[-1] + 1
        if middle >= _MIDDLE_C and pitches[0] >= _MIDDLE_C - _BEYOND:
            return pitches[0]
    return _MIDDLE_C


class _StaffWriter:
    """Writes the voices of a staff in a bar.

    Attributes:
        values: of each voice.
        names: of the pitch classes.
        number: of the staff; 0: it is the only one.
        signs: accidentals, by voice, index of the value, and pitch.
    """

    def __init__(
        self, part: PartWriter, bar: Bar, values: Sequence[Sequence[Value]], number: int
    ) -> None:
        self.part, self.bar, self.values, self.number = part, bar, values, number
        self.names = spelling(bar.key.fifths)
        heads = sorted(
            (value.start, voice, i, pitch)
            for voice, own in enumerate(values)
            for i, value in enumerate(own)
            if value.sound is not None and not part.track.is_drum
            for pitch in value.sound.pitches
        )
        spelled = [
            (spell(pitch, self.names), self._is_tied(values[voice][i]))
            for _, voice, i, pitch in heads
        ]
        signs = accidentals(spelled, bar.key.fifths)
        self.signs = {head[1:]: sign for head, sign in zip(heads, signs, strict=True)}

    def _is_tied(self, value: Value) -> bool:
        """Return whether a value goes on from the one before it."""
        return value.sound is not None and value.sound.onset < self.bar.start + value.start

    def write_voice(self, measure: Element, voice: int, number: int, signs: Sequence[Sign]) -> None:
        """Write the values of a voice, and signs before those that sound at their times."""
        values, waiting = self.values[voice], [*signs]
        beats = beat_starts(self.bar.end - self.bar.start, self.bar.metre)
        beams = beams_of(values, beats)
        for i, value in enumerate(values):
            is_last = i + 1 == len(values)
            while waiting and (is_last or waiting[0].time < self.bar.start + value.end):
                self._write_sign(measure, waiting.pop(0), self.bar.start + value.start)
            self._write_value(measure, (voice, i), number, beams.get(i, []))

    def _write_sign(self, measure: Element, sign: Sign, at: Fraction) -> None:
        """Write a sign before the note at a time, with its offset from that."""
        offset = round((sign.time - at) * self.part.divisions)
        element = sign.element
        if offset > 0:
            printed = Element("offset")
            printed.text = str(offset)
            places = [i for i, each in enumerate(element) if each.tag == "sound"]
            element.insert(places[0] if places else len(element), printed)
        measure.append(element)

    def _write_value(
        self, measure: Element, place: tuple[int, int], number: int, beams: Sequence[str]
    ) -> None:
        """Write the notes of a value, or a rest; rests of lower voices are not printed.

        Args:
            place: the voice in the staff, and the index of the value.
            number: of the voice in the part.
        """
        voice, i = place
        value, divisions = self.values[voice][i], self.part.divisions
        is_whole = value.sound is None and value.end - value.start == self.bar.end - self.bar.start
        pitches: Sequence[int | None] = value.sound.pitches if value.sound else [None]
        for pitch in pitches:
            is_first = pitch == pitches[0]
            note = SubElement(measure, "note")
            self.part.heads.append((note, value, pitch))
            if value.sound is None and voice:
                note.set("print-object", "no")
            if not is_first:
                SubElement(note, "chord")
            self._write_pitch(note, pitch, is_whole)
            SubElement(note, "duration").text = str(int((value.end - value.start) * divisions))
            ties = self._ties(value)
            for tie in ties:
                SubElement(note, "tie", type=tie)
            if self.part.track.is_drum and pitch is not None:
                SubElement(note, "instrument", id=f"{self.part.name}-I{pitch + 1}")
            SubElement(note, "voice").text = str(number)
            if not is_whole:
                self._write_type(note, value, self.signs.get((voice, i, pitch or 0)))
            if self.part.track.is_drum and pitch in CYMBALS:
                SubElement(note, "notehead").text = "x"
            if self.number:
                SubElement(note, "staff").text = str(self.number)
            for level, beam in enumerate(beams if is_first else (), start=1):
                SubElement(note, "beam", number=str(level)).text = beam
            self._write_notations(note, ties, place, is_first)

    def _ties(self, value: Value) -> list[str]:
        """Return `stop` if a value goes on from another, and `start` if another follows."""
        if value.sound is None:
            return []
        goes_on = value.sound.end > self.bar.start + value.end
        return ["stop"] * self._is_tied(value) + ["start"] * goes_on

    def _write_pitch(self, note: Element, pitch: int | None, is_whole: bool) -> None:
        """Write a pitch, the line of a drum, or a rest."""
        if pitch is None:
            SubElement(note, "rest", {"measure": "yes"} if is_whole else {})
        elif self.part.track.is_drum:
            line = line_of_drum(pitch)
            unpitched = SubElement(note, "unpitched")
            SubElement(unpitched, "display-step").text = line[0]
            SubElement(unpitched, "display-octave").text = line[1]
        else:
            spelled = spell(pitch, self.names)
            below = SubElement(note, "pitch")
            SubElement(below, "step").text = spelled.step
            if spelled.alter:
                SubElement(below, "alter").text = str(spelled.alter)
            SubElement(below, "octave").text = str(spelled.octave)

    def _write_type(self, note: Element, value: Value, sign: str | None) -> None:
        """Write the kind of a value: with its dot, an accidental, and its tuplet."""
        SubElement(note, "type").text = TYPES[value.base]
        if value.is_dotted:
            SubElement(note, "dot")
        if sign is not None:
            SubElement(note, "accidental").text = sign
        if value.tuplet is not None:
            scale = SubElement(note, "time-modification")
            SubElement(scale, "actual-notes").text = str(value.tuplet.actual)
            SubElement(scale, "normal-notes").text = str(value.tuplet.normal)

    def _write_notations(
        self, note: Element, ties: Sequence[str], place: tuple[int, int], is_first: bool
    ) -> None:
        """Write the ties of a note; with the first of a chord its tuplet and its fermata."""
        value = self.values[place[0]][place[1]]
        notations = Element("notations")
        for tie in ties:
            SubElement(notations, "tied", type=tie)
        tuplet = value.tuplet
        if is_first and tuplet is not None:
            edges = ("start", value.start == tuplet.start), ("stop", value.end == tuplet.end)
            for edge in (edge for edge, is_here in edges if is_here):
                SubElement(notations, "tuplet", type=edge, bracket="yes")
        is_printed = value.sound is not None or place[0] == 0
        if is_first and is_printed and self.bar.start + value.start in self.part.fermatas:
            SubElement(notations, "fermata")
        if len(notations):
            note.append(notations)
