"""Tunes in ABC notation (standard 2.1, abcnotation.com/wiki/abc:standard:v2.1).

No directive is obeyed but the instruments of `%%MIDI`: none opens another file.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction

from musicgen.midi.key import chord_marker, transposed_marker
from musicgen.midi.score import CHOIR_AAHS
from musicgen.plugins.scores.abc_fields import (
    AbcKey,
    default_length,
    read_key,
    read_length,
    read_metre,
    read_semitones,
    read_tempo,
)
from musicgen.plugins.scores.abc_voice import AbcSettings, AbcVoice
from musicgen.plugins.scores.parts import join_parts
from musicgen.plugins.scores.play_order import CODA, TO_CODA, read_endings, read_mark
from musicgen.plugins.scores.sheet import MAX_BARS, Sheet, sounding_fifths
from musicgen.plugins.scores.sheet_bars import BarEvent, Part

_LENGTH = r"(\d{0,4})(/*)(\d{0,4})"
_NOTE = rf"(\^{{1,2}}|_{{1,2}}|=)?([A-Ga-g])([,']*){_LENGTH}(\.?-)?"
_TOKEN = re.compile(
    rf"""
    \[(?P<field>[A-Za-z]):(?P<value>[^\]\[]*)\]
    | "(?P<text>[^"]*)"
    | \+[a-z.]{{4,30}}\+                                      # decorations as they once were
    | !(?P<decoration>[^!|\n]{{1,80}})! | (?P<sign>[HSO])
    | \{{[^{{}}]*\}}                                          # grace notes
    | (?P<bar>:*\|[|\]:]* | ::+ | \[\|[\]:|]*) \s* (?P<after>\d[\d,-]*)?
    | \[(?P<ending>\d[\d,-]*)
    | \[(?P<chord>[^\]\[|]*)\](?P<chord_length>{_LENGTH})(?P<chord_tie>(?:\.?-)?)
    | (?P<note>{_NOTE})
    | [zx](?P<rest>{_LENGTH})
    | (?P<bars>[ZX])(?P<count>\d{{0,9}})
    | y{_LENGTH}                                             # space without time
    | \((?P<tuplet>\d)(?::(?P<in_time>\d?))?(?::(?P<of_notes>\d?))?
    | (?P<broken>>+|<+)
    | (?P<overlay>&)
    """,
    re.VERBOSE,
)
_SIGNS = {"H": "fermata", "S": "segno", "O": "coda"}
_LONGEST_FIELD = 1000  # characters that are read of a field
_BODY_FIELD = re.compile(r"([A-Za-z]):(.*)")


def split_tunes(text: str) -> list[str]:
    """Return the tunes of a book, each with the fields that come before the first tune.

    A tune begins with an `X:` field and ends at an empty line after its key; other text is left
    out. Text without any `X:` is one tune.
    """
    lines = list(_lines_of_music(text))
    tunes, tune = list[list[str]](), list[str]()
    common = list[str]()
    if not any(line.startswith("X:") for line in lines):
        lines = ["X:1", *lines]
    for line in lines:
        if line.startswith("X:"):
            tune = [line]
            tunes.append(tune)
        elif not tunes and _BODY_FIELD.match(line) and line[0] in "LMQ":
            common.append(line)
        elif line or not any(each.startswith("K:") for each in tune):
            tune.append(line)
        else:
            tune = []  # what follows the empty line
    return ["\n".join([*common, *each]) for each in tunes]


def _lines_of_music(text: str) -> Iterator[str]:
    """Yield the lines without comments, blocks of text, and continued fields of words."""
    block = None
    for line in text.splitlines():
        if block is not None:
            if line.startswith(f"%%end{block}"):
                block = None
        elif begins := re.match(r"%%begin([a-z]+)", line):
            block = begins[1]
        elif line.startswith("%%MIDI") or not line.startswith(("%", "+:")):
            yield line.rstrip()


@dataclass
class _Tune:
    """A tune that is read: its head, its voices by name, and which is read."""

    settings: AbcSettings = field(default_factory=AbcSettings)
    voices: dict[str, AbcVoice] = field(default_factory=dict)
    name: str = "1"
    has_unit: bool = False
    in_head: bool = True
    tempo: str = ""

    @property
    def voice(self) -> AbcVoice:
        if self.name not in self.voices:
            self.voices[self.name] = AbcVoice.begin(self.settings)
        return self.voices[self.name]


def read_tune(text: str, repeats: bool) -> Sheet:
    """Return the music of a tune of `split_tunes`.

    Args:
        repeats: play what is repeated; without it every bar stands once.

    Raises:
        ValueError: it has no key, or too many bars.
    """
    tune = _Tune()
    for line in text.splitlines():
        match = _BODY_FIELD.fullmatch(re.split(r"(?<!\\)%(?!%)", line)[0])
        if line.startswith("%%MIDI"):
            _read_instrument(tune, line)
        elif match and (tune.in_head or match[1] in "IKLMPQRUVWTmNrswCGHOSBDFAZX"):
            _read_field(tune, match[1], match[2])
        elif not tune.in_head:
            _read_music(tune, re.split(r"(?<!\\)%", line)[0])
    if tune.in_head:
        raise ValueError("a tune without a key, K:")
    for voice in tune.voices.values():
        voice.end_bar()
    parts = [Part(voice.track, voice.bars) for voice in tune.voices.values() if voice.bars]
    return join_parts(parts, repeats)


def _read_instrument(tune: _Tune, line: str) -> None:
    """Read the program or channel of a line such as `%%MIDI program 40`."""
    match = re.match(r"%%MIDI\s+(program|channel)\s+(?:\d+\s+)?(\d+)", line)
    if match is None:
        return
    if match[1] == "program":
        tune.voice.track.program = min(int(match[2]), 127)
    elif int(match[2]) == 10:
        tune.voice.track.is_drum = True


def _read_field(tune: _Tune, letter: str, value: str) -> None:
    """Apply a field of the head, of a line or in brackets."""
    settings = tune.settings if tune.in_head else tune.voice.settings
    value = value[:_LONGEST_FIELD]
    if letter == "V":
        _begin_voice(tune, value)
    elif letter == "M":
        settings.metre = read_metre(value)
        if tune.in_head and not tune.has_unit:
            settings.unit = default_length(settings.metre)
        if not tune.in_head and not tune.voice.at:
            tune.voice.bar.metre = settings.metre
    elif letter == "L":
        settings.unit = read_length(value) or settings.unit
        tune.has_unit = True
    elif letter == "Q" and tune.in_head:
        tune.tempo = value
    elif letter == "Q":
        _add_tempo(tune.voice, value)
    elif letter == "K":
        _read_key(tune, value)
    elif letter == "w" and not tune.in_head and tune.voice.track.program == 0:
        tune.voice.track.program = CHOIR_AAHS


def _begin_voice(tune: _Tune, value: str) -> None:
    """Continue with the voice that a field names, and apply its settings."""
    name, _, rest = value.strip().partition(" ")
    tune.name = name or "1"
    voice = tune.voice
    if label := re.search(r'\b(?:name|nm)\s*=\s*("[^"]*"|\S+)', rest):
        voice.track.name = " ".join(label[1].strip('"').replace("\\n", " ").split())
    semitones = read_semitones(rest)
    if semitones is not None:
        voice.settings.semitones = semitones
    voice.track.is_drum = voice.track.is_drum or "perc" in rest


def _add_tempo(voice: AbcVoice, value: str) -> None:
    bpm = read_tempo(value, voice.settings.unit)
    if bpm is not None:
        voice.bar.events.append(BarEvent(voice.at, "tempo", bpm))


def _read_key(tune: _Tune, value: str) -> None:
    """Apply a key; the first one ends the head, whose settings all voices get."""
    key = read_key(value)
    if tune.in_head:
        tune.in_head = False
        first = key if key.fifths is not None else key._replace(fifths=0)
        tune.settings.key = first
        tune.settings.semitones = key.semitones or 0
        for voice in tune.voices.values():
            own = voice.settings.semitones
            voice.settings = replace(tune.settings, semitones=own or tune.settings.semitones)
            voice.bar.metre = tune.settings.metre
        _set_key(tune.voice, first)
        if tune.tempo:
            _add_tempo(tune.voice, tune.tempo)
        return
    voice = tune.voice
    if key.semitones is not None:
        voice.settings.semitones = key.semitones
    if key.fifths is not None or key.alters:
        before = voice.settings.key
        fifths = before.fifths if key.fifths is None else key.fifths
        alters = before.alters | key.alters if key.fifths is None else key.alters
        _set_key(voice, AbcKey(fifths, alters, None, False))


def _set_key(voice: AbcVoice, key: AbcKey) -> None:
    voice.settings.key = key
    fifths = sounding_fifths(key.fifths or 0, voice.settings.semitones)
    voice.bar.events.append(BarEvent(voice.at, "key", fifths))


def _read_music(tune: _Tune, line: str) -> None:
    for token in _TOKEN.finditer(line):
        if token["field"]:
            _read_field(tune, token["field"], token["value"])
        elif token["bar"]:
            _read_bar_line(tune.voice, token["bar"], token["after"])
        else:
            _read_token(tune.voice, token)


def _read_token(voice: AbcVoice, token: re.Match[str]) -> None:
    """Apply a token between bar lines."""
    if token["note"]:
        note = _read_note(re.fullmatch(_NOTE, token["note"]))
        voice.add(note[3], [note])
    elif token["chord"]:
        _read_chord(voice, token)
    elif token["rest"] is not None:
        voice.add(_read_duration(token["rest"]), [])
    elif token["bars"]:
        _rest_for_bars(voice, int(token["count"] or 1))
    elif token["ending"]:
        voice.bar.endings = read_endings(token["ending"])
    elif token["tuplet"]:
        _begin_tuplet(voice, token)
    elif token["broken"]:
        _break_rhythm(voice, token["broken"])
    elif token["overlay"]:
        voice.overlay()
    elif token["text"]:
        _read_words(voice, token["text"])
    else:
        _read_decoration(voice, token["decoration"] or _SIGNS.get(token["sign"], ""))


def _break_rhythm(voice: AbcVoice, signs: str) -> None:
    """Lengthen the last note and shorten the next for `>`, or the other way round for `<`."""
    short = Fraction(1, 2 ** min(3, len(signs)))
    first, second = (2 - short, short) if signs[0] == ">" else (short, 2 - short)
    voice.lengthen(first)
    voice.broken = second


def _read_words(voice: AbcVoice, text: str) -> None:
    """Apply a chord symbol, or words such as D.C. al Fine."""
    if marker := chord_marker(text):
        sounding = transposed_marker(marker, sounding_fifths(0, voice.settings.semitones))
        voice.bar.events.append(BarEvent(voice.at, "chord", sounding))
    elif mark := read_mark(text):
        voice.bar.marks.add(mark)


def _read_decoration(voice: AbcVoice, name: str) -> None:
    """Apply a fermata, or a mark of D.C. or D.S.

    The sign of a coda means that the music goes there, unless it stands where a bar begins.
    """
    mark = read_mark(name)
    if name in ("fermata", "invertedfermata"):
        voice.bar.events.append(BarEvent(voice.at, "fermata"))
    elif mark == CODA and voice.at:
        voice.bar.marks.add(TO_CODA)
    elif mark:
        voice.bar.marks.add(mark)


def _read_note(match: re.Match[str] | None) -> tuple[str, int, int | None, Fraction, bool]:
    """Return letter, octave, accidental, length and tie of a note."""
    assert match is not None
    sign, letter, marks, *_ = match.groups()
    octave = 4 + letter.islower() + marks.count("'") - marks.count(",")
    accidental = None if sign is None else sign.count("^") - sign.count("_")
    length = _read_duration("".join(match.groups()[3:6]))
    return letter.upper(), octave, accidental, length, match[7] is not None


def _read_duration(text: str) -> Fraction:
    """Return a length such as `3/2`, `/` or `//`, in unit lengths."""
    over, slashes, below = re.match(_LENGTH, text).groups()  # type: ignore[union-attr]
    divisor = int(below) if below else 2 ** min(8, len(slashes))
    return Fraction(int(over or 1), divisor or 1)


def _read_chord(voice: AbcVoice, token: re.Match[str]) -> None:
    """Add the notes of a chord, which lasts as long as its first note."""
    length, ties = _read_duration(token["chord_length"]), token["chord_tie"] != ""
    notes = []
    for match in re.finditer(_NOTE, re.sub(r'"[^"]*"|![^!]*!', "", token["chord"])):
        letter, octave, accidental, own, ties_on = _read_note(match)
        notes.append((letter, octave, accidental, own * length, ties or ties_on))
    if notes:
        voice.add(notes[0][3], notes)


def _rest_for_bars(voice: AbcVoice, count: int) -> None:
    """Add rests of whole bars."""
    if count + len(voice.bars) > MAX_BARS:
        raise ValueError(f"more than {MAX_BARS:,} bars")
    over, below = voice.settings.metre or (4, 4)
    for number in range(count):
        if number:
            voice.end_bar()
        voice.at += Fraction(4 * over, below)


def _begin_tuplet(voice: AbcVoice, token: re.Match[str]) -> None:
    """Set how many notes are played in the time of how many others, by the standard's table."""
    count = int(token["tuplet"]) or 1
    over, below = voice.settings.metre or (4, 4)
    odd = 3 if over % 3 == 0 and below >= 8 else 2
    usual = {2: 3, 3: 2, 4: 3, 6: 2, 8: 3}.get(count, odd)
    in_time = int(token["in_time"] or 0) or usual
    voice.tuplet = Fraction(in_time, count), int(token["of_notes"] or 0) or count


def _read_bar_line(voice: AbcVoice, line: str, ending: str | None) -> None:
    """End the bar; note where repeats begin and end."""
    voice.end_bar()
    closes = line.startswith(":")
    if closes and voice.bars:
        voice.bars[-1].times = max(2, len(line) - len(line.lstrip(":")) + 1) if "|" in line else 2
    if closes or "]" in line or "||" in line or line.endswith(":"):
        voice.bar.endings = frozenset()
    if line.endswith(":") and len(line) > 1:
        voice.bar.opens = True
    if ending:
        voice.bar.endings = read_endings(ending)
