"""Tunes in ABC notation (standard 2.1, abcnotation.com/wiki/abc:standard:v2.1).

No directive is obeyed but the instruments of `%%MIDI`, and how far accidentals reach: none opens
another file.
"""

import re
from collections.abc import Sequence
from fractions import Fraction

from musicgen.midi.key import chord_marker, transposed_marker
from musicgen.midi.score import CHOIR_AAHS, DOUBLE_BAR, FERMATA, PITCH_CLASSES, Track
from musicgen.plugins.scores.abc_fields import (
    note_length,
    read_key,
    read_length,
    read_metre,
    read_order,
    read_semitones,
    read_tempo,
    read_tuplet,
)
from musicgen.plugins.scores.bars_and_repeats import (
    CODA,
    MAX_BARS,
    TO_CODA,
    Bar,
    Metre,
    Note,
    PrintedKey,
    bar_length,
    in_order,
    read_endings,
    read_mark,
    sounding_fifths,
)
from musicgen.plugins.scores.sheet import Sheet, join_parts
from musicgen.text import pluralize

_LENGTH = r"\d{0,4}/*\d{0,4}"
_SIGN = r"[\^_]\d{0,2}/{1,2}\d{0,2}|\^{1,2}|_{1,2}|="  # ^3/2 is of a microtone
_NOTE = rf"({_SIGN})?([A-Ga-g])([,']*)({_LENGTH})(\.?-)?"
_TOKEN = re.compile(
    rf"""
    \[(?P<field>[A-Za-z]):(?P<value>[^\]\[]*)\]
    | "(?P<text>[^"]*)"
    | \+(?P<old>[a-z.]{{4,30}} | D\.[CS]\.[a-z]{{0,20}})\+    # decorations as they once were
    | !(?P<mark>[^!|\n]{{1,80}})! | (?P<sign>[HSO])
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


def read_tune(text: str, repeats: bool) -> Sheet:
    """Return the music of a tune of `split_tunes`.

    Args:
        repeats: whether repeats are expanded.

    Raises:
        ValueError: it has no key, or too many bars.
    """
    tune = _Tune()
    for line in text.splitlines():
        if line.startswith("%%MIDI"):
            tune.read_instrument(line)
            continue
        if scope := re.match(r"(?:%%|I:)propagate-accidentals\s+(not|octave|pitch)", line):
            tune.read_scope(scope[1])
        line = re.split(r"(?<!\\)%", line)[0]
        match = re.fullmatch(r"([A-Za-z]):(.*)", line)
        if match and (tune.in_head or match[1] in "IKLMPQRUVWTmNrswCGHOSBDFAZX"):
            tune.read_field(match[1], match[2])
        elif not tune.in_head:
            tune.read_music(line)
    if tune.in_head:
        raise ValueError("a tune without a key, K:")
    voices = tune.end()
    sections = max((voice.sections for voice in voices), key=len, default=[])
    if repeats and tune.order and sections:
        for voice in voices:
            voice.bars = in_order(voice.bars, sections, read_order(tune.order))
    sheet = join_parts([(voice.track, voice.bars) for voice in voices], repeats)
    num_microtones = sum(voice.num_microtones for voice in voices)
    counts = {"microtones rounded": num_microtones, "macros (m:) not played": tune.num_macros}
    sheet.repairs += [pluralize(count, what) for what, count in counts.items() if count]
    return sheet


class _Voice:
    """A voice, and where in it the reader is.

    Attributes:
        key: the key signature, and the semitones by which it alters notes, by their letters.
        unit: the unit length in quarters.
        semitones: from what is printed to what sounds.
        track: its name and instrument, without notes.
        bars: those that are complete.
        bar: the one that is read.
        at: where in it the next note begins, in quarters.
        sections: the first bar and the letter of each section.
        scope: of accidentals: the same `pitch` in all octaves, one `octave`, or `not` a later note.
        accidentals: those that hold until its end, by letters, or by pitches without accidentals.
        overlay: how many `&` there were in the bar.
        ties: the accidentals of the last notes that tie on, by overlays, by pitches without them.
        last: where the last note or rest begins, its length, and how many notes it has.
        tuplet: by how much the next notes are shorter, and how many these are.
        broken: by how much the next note is shorter, since the one before is dotted, or longer.
        num_microtones: notes whose pitches are no semitones.
    """

    def __init__(self) -> None:
        self.key, self.alters = PrintedKey(0), dict[str, int]()
        self.metre: Metre | None = None
        self.unit = Fraction(0)
        self.semitones = 0
        self.track = Track()
        self.bars = list[Bar]()
        self.bar = Bar(None)
        self.at = Fraction(0)
        self.sections = list[tuple[int, str]]()
        self.scope = "pitch"
        self.accidentals = dict[int | str, int]()
        self.overlay = 0
        self.ties = dict[int, dict[int, int]]()
        self.last = Fraction(0), Fraction(0), 0
        self.tuplet = Fraction(1), 0
        self.broken = Fraction(1)
        self.num_microtones = 0

    def begin(self, head: "_Voice") -> None:
        """Take over what the head of the tune says, but for a transposition of the voice's own."""
        self.key, self.alters = head.key, head.alters
        self.metre = self.bar.metre = head.metre
        self.unit = head.unit
        self.semitones = self.semitones or head.semitones
        self.scope = head.scope
        self.begin_key()

    def begin_key(self) -> None:
        """Let the key signature begin here, as it sounds."""
        self.bar.keys.append((self.at, self.key.sounding(self.semitones)))

    def read_token(self, token: re.Match[str]) -> None:
        """Apply a token between bar lines."""
        if chord := token["note"] or token["chord"]:
            notes = re.findall(_NOTE, re.sub(r'"[^"]*"|![^!]*!', "", chord))
            if notes:
                self._add(note_length(token["chord_length"] or ""), notes, bool(token["chord_tie"]))
        elif token["rest"] is not None:
            self._add(note_length(token["rest"]), [])
        elif token["bars"]:
            self._rest_for_bars(int(token["count"] or 1))
        elif token["ending"]:
            self.bar.endings = read_endings(token["ending"])
        elif token["tuplet"]:
            self.tuplet = read_tuplet(token, self.metre or (4, 4))
        elif token["broken"]:
            self._break_rhythm(token["broken"])
        elif token["overlay"]:  # another voice in this bar
            self.bar.length = max(self.bar.length, self.at)
            self.at, self.accidentals, self.overlay = Fraction(0), {}, self.overlay + 1
        elif token["text"]:
            self._read_words(token["text"])
        else:
            self._read_decoration(token["mark"] or token["old"] or _SIGNS.get(token["sign"], ""))

    def _add(
        self, length: Fraction, notes: Sequence[tuple[str, ...]], ties_on: bool = False
    ) -> None:
        """Add notes that begin together and last as long as the first, or a rest.

        Args:
            length: of a rest in unit lengths; of notes, a factor of their own lengths.
            notes: groups of `_NOTE`; a rest has none.
            ties_on: all notes are tied to the next.
        """
        length *= self.unit * self.broken
        if self.tuplet[1]:
            length *= self.tuplet[0]
            self.tuplet = self.tuplet[0], self.tuplet[1] - 1
        self.broken = Fraction(1)
        tied, ties = self.ties.get(self.overlay, {}), dict[int, int]()
        for sign, letter, marks, own, tie in notes:
            octave = 4 + letter.islower() + marks.count("'") - marks.count(",")
            natural = 12 * (octave + 1) + PITCH_CLASSES.index(letter.upper())
            exact = (sign.count("^") - sign.count("_")) * note_length(sign.strip("^_="))
            alter, holds_for = round(exact), letter.upper() if self.scope == "pitch" else natural
            is_tied = natural in tied and (not sign or alter == tied[natural])
            if sign:
                self.num_microtones += exact != alter
                if self.scope != "not":
                    self.accidentals[holds_for] = alter
            elif is_tied:
                alter = tied[natural]
            else:
                alter = self.accidentals.get(holds_for, self.alters.get(letter.upper(), 0))
            if tie or ties_on:
                ties[natural] = alter
            pitch = natural + alter + self.semitones
            note = Note(self.at, length * note_length(own), pitch, is_tied, natural in ties)
            self.bar.notes.append(note)
        self.ties[self.overlay] = ties
        if notes:
            length *= note_length(notes[0][3])
        self.last = self.at, length, len(notes)
        self.at += length

    def read_bar_line(self, line: str, ending: str | None) -> None:
        """End the bar; note where repeats begin and end."""
        if line == "||" and self.at:
            self.bar.markers.append((self.at, DOUBLE_BAR))
        self.end_bar()
        closes = line.startswith(":")
        if closes and self.bars:
            colons = len(line) - len(line.lstrip(":"))
            self.bars[-1].times = colons + 1 if "|" in line else 2
        if closes or "]" in line or "||" in line or line.endswith(":"):
            self.bar.endings = frozenset()
        if line.endswith(":") and len(line) > 1:
            self.bar.opens = True
        if ending:
            self.bar.endings = read_endings(ending)

    def end_bar(self) -> None:
        """Begin the next bar, unless there is nothing in this one."""
        self.bar.length = max(self.bar.length, self.at)
        if not self.bar.length:
            self.bar.metre = self.metre
            return
        self.bars.append(self.bar)
        self.bar = Bar(self.metre, endings=self.bar.endings)
        self.at, self.accidentals, self.overlay = Fraction(0), {}, 0

    def _rest_for_bars(self, count: int) -> None:
        if count + len(self.bars) > MAX_BARS:
            raise ValueError(f"more than {MAX_BARS:,} bars")
        for number in range(count):
            if number:
                self.end_bar()
            self.at += bar_length(self.metre or (4, 4))

    def _break_rhythm(self, signs: str) -> None:
        """Lengthen the last note and shorten the next for `>`, or the other way round for `<`."""
        short = Fraction(1, 2 ** min(3, len(signs)))
        factor, self.broken = (2 - short, short) if signs[0] == ">" else (short, 2 - short)
        onset, length, count = self.last
        for i in range(-count, 0):
            note = self.bar.notes[i]
            self.bar.notes[i] = note._replace(duration=note.duration * factor)
        self.at = onset + length * factor
        self.last = onset, length * factor, count

    def _read_words(self, text: str) -> None:
        """Apply a chord symbol, or words such as D.C. al Fine."""
        if marker := chord_marker(text):
            sounding = transposed_marker(marker, sounding_fifths(0, self.semitones))
            self.bar.markers.append((self.at, sounding))
        elif mark := read_mark(text):
            self.bar.marks[mark] = ""

    def _read_decoration(self, name: str) -> None:
        """Apply a fermata, or a mark of D.C. or D.S.

        The sign of a coda means that the music goes there, unless it stands where a bar begins.
        """
        mark = read_mark(name)
        if name in ("fermata", "invertedfermata"):
            self.bar.markers.append((self.at, FERMATA))
        elif mark:
            self.bar.marks[TO_CODA if mark == CODA and self.at else mark] = ""


class _Tune:
    """A tune that is read: its head, its voices by name, and which one is read."""

    def __init__(self) -> None:
        self.head = _Voice()
        self.in_head = True
        self.tempo = self.order = ""
        self.num_macros = 0
        self.voices = dict[str, _Voice]()
        self.name = "1"

    def end(self) -> list[_Voice]:
        """Return the voices that have bars; the tempo of the head is the first one's."""
        for voice in self.voices.values():
            voice.end_bar()
        voices = [voice for voice in self.voices.values() if voice.bars]
        bpm = read_tempo(self.tempo, self.head.unit)
        if voices and bpm is not None:
            voices[0].bars[0].tempos.insert(0, (Fraction(0), bpm))
        return voices

    @property
    def voice(self) -> _Voice:
        if self.name not in self.voices:
            self.voices[self.name] = _Voice()
            self.voices[self.name].begin(self.head)
        return self.voices[self.name]

    def read_instrument(self, line: str) -> None:
        """Read the program or channel of a line such as `%%MIDI program 40`."""
        match = re.match(r"%%MIDI\s+(program|channel)\s+(?:\d+\s+)?(\d+)", line)
        if match and match[1] == "program":
            self.voice.track.program = min(int(match[2]), 127)
        elif match and int(match[2]) == 10:
            self.voice.track.is_drum = True

    def read_scope(self, scope: str) -> None:
        """Set how far accidentals reach from here on."""
        for voice in (self.head, *self.voices.values()):
            voice.scope = scope

    def read_music(self, line: str) -> None:
        """Read a line of notes."""
        for token in _TOKEN.finditer(line):
            if token["field"]:
                self.read_field(token["field"], token["value"])
            elif token["bar"]:
                self.voice.read_bar_line(token["bar"], token["after"])
            else:
                self.voice.read_token(token)

    def read_field(self, letter: str, value: str) -> None:
        """Apply a field of the head, of a line or in brackets."""
        value = value[:_LONGEST_FIELD]
        if letter == "V":
            self._begin_voice(value)
            return
        voice = self.head if self.in_head else self.voice
        if letter == "M":
            voice.metre = read_metre(value)
            if not voice.at:
                voice.bar.metre = voice.metre
        elif letter == "L":
            voice.unit = read_length(value) or voice.unit
        elif letter == "Q" and self.in_head:
            self.tempo = value
        elif letter == "Q" and (bpm := read_tempo(value, voice.unit)):
            voice.bar.tempos.append((voice.at, bpm))
        elif letter == "K":
            self._read_key(voice, value)
        else:
            self._read_rare_field(letter, value, voice)

    def _read_rare_field(self, letter: str, value: str, voice: _Voice) -> None:
        """Apply the order of sections, or one of them; count macros; notice words."""
        if letter == "P" and self.in_head:
            self.order = value
        elif letter == "P" and (section := re.match(r"\s*([A-Z])", value)):
            voice.sections.append((len(voice.bars) + (voice.at > 0), section[1]))
        elif letter == "m":
            self.num_macros += 1
        elif letter == "w" and voice.track.program == 0:
            voice.track.program = CHOIR_AAHS

    def _begin_voice(self, value: str) -> None:
        """Continue with the voice that a field names, and apply its settings."""
        name, _, rest = value.strip().partition(" ")
        self.name = name or "1"
        voice = self.voice
        if label := re.search(r'\b(?:name|nm)\s*=\s*("[^"]*"|\S+)', rest):
            voice.track.name = " ".join(label[1].strip('"').replace("\\n", " ").split())
        semitones = read_semitones(rest)
        if semitones is not None:
            voice.semitones = semitones
            voice.begin_key()
        voice.track.is_drum |= "perc" in rest

    def _read_key(self, voice: _Voice, value: str) -> None:
        """Apply a key; the first one ends the head, whose settings all voices get."""
        key, alters, semitones = read_key(value)
        if semitones is not None:
            voice.semitones = semitones
        if key is None:
            voice.alters = voice.alters | alters
        else:
            voice.key, voice.alters = key, alters
        if self.in_head:
            self.in_head = False
            is_short = voice.metre is not None and voice.metre[0] / voice.metre[1] < 0.75
            voice.unit = voice.unit or Fraction(1, 4 if is_short else 2)
            for each in self.voices.values():
                each.begin(voice)
        elif key is not None or alters:
            voice.begin_key()
