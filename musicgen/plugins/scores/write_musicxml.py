"""MusicXML (4.0, partwise) of a `Score`, at sounding pitch. `read_musicxml` reads it back."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import groupby, pairwise
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from musicgen.midi.key import Key, final_key
from musicgen.midi.score import DOUBLE_BAR, DRUMS, FERMATA, SIGNS, Score, Track, role
from musicgen.plugins.scores.bars_and_repeats import Metre, bar_length
from musicgen.plugins.scores.written_parts import Bar, PartWriter, Sign
from musicgen.plugins.scores.written_signs import chord_symbol
from musicgen.plugins.scores.written_time import written_sounds

_HEAD = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE score-partwise PUBLIC "-//Recordare//DTD '
    'MusicXML 4.0 Partwise//EN" "http://www.musicxml.org/dtds/partwise.dtd">\n'
)
_DYNAMICS = ("ppp", "pp", "p", "mp", "mf", "f", "ff", "fff")
_SOFTEST, _STEP, _NEAR = 16, 16, 10  # velocities: of ppp, from one to the next, and of hysteresis


def write_musicxml(score: Score, title: str = "") -> bytes:
    """Return a score as MusicXML: bars by its metres, notes with ties in up to four voices a staff.

    - Tracks without notes are left out. A keyboard's has two staves if it is no tune.
    - Notes that are on no division of a beat, since they were played, are moved to sixteenths or
      triplets. A first bar whose first half is silent is an upbeat.
    - Without a key signature the key is that of the notes. Pitches are spelled by the key.
    - Chords, fermatas and double bars are those of the markers; other markers are rehearsal marks.
      Dynamics stand where the velocities of a track differ. Parts of a family that follow another
      have a bracket.

    Args:
        title: of the page.
    """
    root, _ = musicxml_tree(score, title)
    ElementTree.indent(root, " ")
    return (_HEAD + ElementTree.tostring(root, "unicode") + "\n").encode()


def musicxml_tree(score: Score, title: str = "") -> tuple[Element, list[PartWriter]]:
    """Return the MusicXML of `write_musicxml`, and what wrote its parts: of tracks with notes."""
    tracks = [track for track in score.tracks if len(track.notes)] or [Track("Music")]
    sounds = [written_sounds(track.notes, score.ticks_per_beat) for track in tracks]
    bars = _bars_of(score, min((own[0].onset for own in sounds if own), default=Fraction(0)))
    root = Element("score-partwise", version="4.0")
    if title:
        SubElement(SubElement(root, "work"), "work-title").text = _printable(title)
    encoding = SubElement(SubElement(root, "identification"), "encoding")
    SubElement(encoding, "software").text = "musicgen"
    listed, parts = SubElement(root, "part-list"), list[PartWriter]()
    for i, (track, own) in enumerate(zip(tracks, sounds, strict=True)):
        listed.append(_head_of_part(track, i))
        signs = [*_signs_of_piece(score, bars)] if i == 0 else []
        signs += _dynamics(track, score.ticks_per_beat, bars)
        parts.append(PartWriter(track, f"P{i + 1}", own, bars, signs))
    _place_fermatas(score, parts)
    for part in parts:
        root.append(part.element())
    _write_brackets(listed, tracks)
    return root, parts


def _write_brackets(listed: Element, tracks: Sequence[Track]) -> None:
    """Join parts of a family by a bracket and by bar lines; a keyboard has a brace of its own."""
    heads, number = list(listed), 0
    for family, own in groupby(zip(heads, tracks, strict=True), key=lambda pair: role(pair[1])):
        members = [head for head, _ in own]
        if len(members) < 2 or family in (DRUMS, "Piano"):
            continue
        number += 1
        start = Element("part-group", type="start", number=str(number))
        SubElement(start, "group-symbol").text = "bracket"
        SubElement(start, "group-barline").text = "yes"
        listed.insert(list(listed).index(members[0]), start)
        stop = Element("part-group", type="stop", number=str(number))
        listed.insert(list(listed).index(members[-1]) + 1, stop)


def _bars_of(score: Score, first_onset: Fraction) -> list[Bar]:
    """Return the bars of a score, of which the first may be an upbeat."""
    ticks = score.ticks_per_beat
    lines = [Fraction(int(tick), ticks) for tick in score.bar_starts()]
    metres = [score.time_signature_at(round(line * ticks))[1:] for line in lines]
    lines.append(max(lines[-1] + bar_length(metres[-1]), Fraction(score.end, ticks)))
    if len(lines) > 2:
        first, second = lines[1], lines[2] - lines[1]
        if first / 2 <= first_onset < first <= second:
            lines[0] = first_onset
    keys = score.key_signatures or [(final_key(score) or Key(0, major=True)).signature]
    changes = [Fraction(key.tick, ticks) for key in keys]
    in_force = [keys[max(0, bisect_right(changes, line) - 1)] for line in lines]
    double = {Fraction(mark.tick, ticks) for mark in score.markers if mark.text == DOUBLE_BAR}
    styles = ["light-light" if line in double else "regular" for line in lines[1:-1]]
    spans = zip(pairwise(lines), metres, in_force, [*styles, "light-heavy"], strict=False)
    return [Bar(*span, metre, key, style) for span, metre, key, style in spans]


def _place_fermatas(score: Score, parts: Sequence[PartWriter]) -> None:
    """Give fermatas to the parts in which notes or rests begin at most of their times."""
    ticks = (marker.tick for marker in score.markers if marker.text == FERMATA)
    times = frozenset(Fraction(tick, score.ticks_per_beat) for tick in ticks)
    found = [times & part.starts() for part in parts if times]
    most = max(map(len, found), default=0)
    for part, own in zip(parts, found, strict=False):
        part.fermatas = own if len(own) == most else frozenset()


def _signs_of_piece(score: Score, bars: Sequence[Bar]) -> Iterator[Sign]:
    """Yield tempi, chord symbols and the texts of other markers."""
    ticks = score.ticks_per_beat
    is_steady = len(score.tempos) <= len(bars)
    for number, (tick, bpm) in enumerate(score.tempos.tolist()):
        is_printed = is_steady or number == 0
        yield Sign(Fraction(tick, ticks), _tempo(bpm, bars[0].metre, is_printed))
    for marker in score.markers:
        symbol, time = chord_symbol(marker), Fraction(marker.tick, ticks)
        text = _printable(marker.text)
        if symbol is not None:
            yield Sign(time, _harmony(*symbol))
        elif text not in SIGNS and text.strip():
            direction = Element("direction", placement="above")
            SubElement(SubElement(direction, "direction-type"), "rehearsal").text = text
            yield Sign(time, direction)


def _tempo(bpm: float, metre: Metre, is_printed: bool) -> Element:
    """Return a tempo in quarters a minute; one that is not printed sounds alone."""
    sound = Element("sound", tempo=f"{bpm:.6g}")
    if not is_printed:
        return sound
    direction = Element("direction", placement="above")
    metronome = SubElement(SubElement(direction, "direction-type"), "metronome")
    is_compound = metre[1] == 8 and metre[0] % 3 == 0
    SubElement(metronome, "beat-unit").text = "quarter"
    if is_compound:
        SubElement(metronome, "beat-unit-dot")
    SubElement(metronome, "per-minute").text = f"{bpm / (1.5 if is_compound else 1):.5g}"
    direction.append(sound)
    return direction


def _harmony(root: str, kind: str, bass: str) -> Element:
    """Return a chord symbol; the root of no chord is not printed."""
    harmony = Element("harmony")
    places = [("root", root)] + ([("bass", bass)] if bass != root else [])
    for place, note in places:
        below = SubElement(harmony, place)
        step = SubElement(below, f"{place}-step")
        step.text = note[0]
        if kind == "none":
            step.text = "C"
            step.set("text", "")
        elif alter := note.count("#") - note.count("b"):
            SubElement(below, f"{place}-alter").text = str(alter)
        if place == "root":
            named = SubElement(harmony, "kind", {"text": "N.C."} if kind == "none" else {})
            named.text = kind
    return harmony


def _dynamics(track: Track, ticks: int, bars: Sequence[Bar]) -> Iterator[Sign]:
    """Yield dynamics at bars, by their mean velocities, if those of the track differ."""
    velocities = defaultdict[int, list[int]](list)
    starts = [bar.start for bar in bars]
    for note in track.notes:
        bar = max(0, bisect_right(starts, Fraction(int(note["onset"]), ticks)) - 1)
        velocities[bar].append(int(note["velocity"]))
    if len({each for own in velocities.values() for each in own}) < 2:
        return
    level = None
    for bar, own in sorted(velocities.items()):
        mean = sum(own) / len(own)
        if level is None or abs(mean - (_SOFTEST + _STEP * level)) > _NEAR:
            nearest = max(0, min(len(_DYNAMICS) - 1, round((mean - _SOFTEST) / _STEP)))
            if nearest != level:
                level = nearest
                direction = Element("direction", placement="below")
                mark = SubElement(SubElement(direction, "direction-type"), "dynamics")
                SubElement(mark, _DYNAMICS[level])
                yield Sign(starts[bar], direction)


def _head_of_part(track: Track, index: int) -> Element:
    """Return what the list of parts says: the name of a part, its program or its drums."""
    head = Element("score-part", id=f"P{index + 1}")
    SubElement(head, "part-name").text = _printable(track.name)
    drums = sorted({int(pitch) for pitch in track.notes["pitch"]}) if track.is_drum else [None]
    names = [f"P{index + 1}-I{1 if drum is None else drum + 1}" for drum in drums]
    for name, drum in zip(names, drums, strict=True):
        instrument = SubElement(head, "score-instrument", id=name)
        text = _printable(track.name) if drum is None else f"Drum {drum}"
        SubElement(instrument, "instrument-name").text = text
    channels = [channel for channel in range(1, 17) if channel != 10]
    for name, drum in zip(names, drums, strict=True):
        midi = SubElement(head, "midi-instrument", id=name)
        channel = channels[index % len(channels)] if drum is None else 10
        SubElement(midi, "midi-channel").text = str(channel)
        SubElement(midi, "midi-program").text = str(track.program + 1)
        if drum is not None:
            SubElement(midi, "midi-unpitched").text = str(drum + 1)
    return head


def _printable(text: str) -> str:
    """Return a text without the characters that XML has no place for."""
    return re.sub(r"[^\t\n -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "", text)
