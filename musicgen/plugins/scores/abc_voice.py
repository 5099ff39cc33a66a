"""A voice of a tune in ABC notation, and its bars."""

from dataclasses import dataclass, field, replace
from fractions import Fraction

from musicgen.midi.score import Track
from musicgen.plugins.scores.abc_fields import AbcKey
from musicgen.plugins.scores.sheet_bars import Bar, BarNote

_STEPS = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11}


@dataclass
class AbcSettings:
    """What fields have said: the head of a tune for all voices, later ones for their own."""

    key: AbcKey = field(default_factory=lambda: AbcKey(0, {}, None, False))
    metre: tuple[int, int] | None = None
    unit: Fraction = Fraction(1, 2)
    semitones: int = 0


@dataclass
class AbcVoice:
    """A voice, and where in it the reader is.

    Attributes:
        track: its name and instrument, without notes.
        bars: those that are complete.
        bar: the one that is read.
        at: where in it the next note begins, in quarters.
        alters: accidentals that hold until its end, by letter and octave.
        ties: what the last notes tie on: their accidentals, by letter and octave.
        last: where the last note or rest begins, its length, and how many notes it has.
        tuplet: by how much the next notes are shorter, and how many these are.
        broken: by how much the next note is shorter, since the one before is dotted, or longer.
    """

    settings: AbcSettings
    bar: Bar
    track: Track = field(default_factory=Track)
    bars: list[Bar] = field(default_factory=list)
    at: Fraction = Fraction(0)
    alters: dict[tuple[str, int], int] = field(default_factory=dict)
    ties: dict[tuple[str, int], int] = field(default_factory=dict)
    last: tuple[Fraction, Fraction, int] = (Fraction(0), Fraction(0), 0)
    tuplet: tuple[Fraction, int] = (Fraction(1), 0)
    broken: Fraction = Fraction(1)

    @classmethod
    def begin(cls, settings: AbcSettings) -> "AbcVoice":
        """Return a voice without music yet."""
        return cls(replace(settings), Bar(settings.metre))

    def add(
        self, length: Fraction, notes: list[tuple[str, int, int | None, Fraction, bool]]
    ) -> None:
        """Add notes that begin together, or a rest, which has none.

        Args:
            length: by which the next begins later, in unit lengths.
            notes: letter, octave, printed accidental (None: as before), length, and whether it is
                tied to the next.
        """
        factor = self.settings.unit * self.broken
        if self.tuplet[1]:
            factor *= self.tuplet[0]
            self.tuplet = self.tuplet[0], self.tuplet[1] - 1
        self.broken = Fraction(1)
        ties = dict[tuple[str, int], int]()
        for letter, octave, accidental, own, ties_on in notes:
            place = letter, octave
            is_tied = place in self.ties and accidental in (None, self.ties[place])
            if accidental is not None:
                self.alters[place] = accidental
            alter = self.alters.get(place, self.settings.key.alters.get(letter, 0))
            if is_tied:
                alter = self.ties[place]
            if ties_on:
                ties[place] = alter
            pitch = 12 * (octave + 1) + _STEPS[letter] + alter + self.settings.semitones
            self.bar.notes.append(BarNote(self.at, own * factor, pitch, is_tied, ties_on))
        self.ties = ties
        self.last = self.at, length * factor, len(notes)
        self.at += length * factor

    def lengthen(self, factor: Fraction) -> None:
        """Multiply the length of the last note or chord, as a dot does."""
        onset, length, count = self.last
        for i in range(len(self.bar.notes) - count, len(self.bar.notes)):
            note = self.bar.notes[i]
            self.bar.notes[i] = note._replace(duration=note.duration * factor)
        self.at = onset + length * factor
        self.last = onset, length * factor, count

    def overlay(self) -> None:
        """Go back to the beginning of the bar, for another voice in it."""
        self.bar.length = max(self.bar.length, self.at)
        self.at = Fraction(0)
        self.alters, self.ties = {}, {}

    def end_bar(self) -> None:
        """Begin the next bar, unless there is nothing in this one."""
        self.bar.length = max(self.bar.length, self.at)
        if not self.bar.length:
            self.bar.metre = self.settings.metre
            return
        self.bars.append(self.bar)
        self.bar = Bar(self.settings.metre, endings=self.bar.endings)
        self.at, self.alters = Fraction(0), {}
