"""Melodies from two-bar motifs, which are repeated, varied and fitted to the harmony."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from musicgen.composer.draw import chance, pick
from musicgen.composer.harmony import Chord, ladder, nearest, scale_over
from musicgen.midi.key import Key


class Metre(NamedTuple):
    """A time signature, with lengths in steps of a sixteenth note.

    Attributes:
        name: the time signature, such as `4/4`.
        bar, beat: steps in a bar and in a beat.
        split: the step in a bar at which the second chord begins, in bars with two chords.
        rests: steps after which the second bar of a motif may be silent.
        longest: options for the longest note of a motif.
    """

    name: str
    bar: int
    beat: int
    split: int
    rests: tuple[int, ...]
    longest: tuple[int, ...]


FOUR_FOUR = Metre("4/4", 16, 4, 8, rests=(4, 8, 10), longest=(4, 8, 8, 12))
THREE_FOUR = Metre("3/4", 12, 4, 8, rests=(0, 4, 6), longest=(4, 8, 12, 12))
SIX_EIGHT = Metre("6/8", 12, 6, 6, rests=(0, 4, 6), longest=(6, 6, 12, 12))


class Tone(NamedTuple):
    """A note of a motif: onset and length in steps, and the move in scale steps.

    A move is relative to the previous note, or to the middle pitch of the section for the first
    note. A note that `leans` is an appoggiatura: it may lie outside of the chord on a strong beat,
    and the next note is a step lower.
    """

    onset: int
    length: int
    move: int
    leans: bool = False


class Note(NamedTuple):
    """A note of a part: onset and length in steps, MIDI pitch."""

    onset: int
    length: int
    pitch: int


Motif = tuple[Tone, ...]


class Harmony(NamedTuple):
    """The chords of each bar, one or two."""

    bars: list[tuple[Chord, ...]]
    metre: Metre

    def at(self, step: int) -> Chord:
        """Return the chord at a step from the beginning."""
        bar, step = divmod(step, self.metre.bar)
        return self.bars[bar][0 if step < self.metre.split else -1]


# Onsets within a beat and their weights, by feel. Swung off-beats are on the last step of a beat.
_CELLS: dict[str, dict[tuple[int, ...], float]] = {
    "straight": {(0,): 4, (0, 2): 5, (2,): 1.5, (): 1},
    "sixteenth": {
        (0,): 3, (0, 2): 3, (0, 3): 2, (2,): 1, (3,): 0.8, (): 1, (0, 2, 3): 1.5, (0, 1, 2): 0.6,
        (1, 2): 0.4, (0, 1, 2, 3): 0.4,
    },
    "swing": {(0,): 4, (0, 3): 5, (3,): 2, (): 1},
    "compound": {(0,): 4, (0, 4): 5, (0, 2, 4): 4, (0, 3, 4): 1, (2, 4): 0.7, (4,): 0.7, (): 0.5},
}  # fmt: skip

_REACH = 5  # largest distance of a motif from its beginning, in scale steps
_MOVES = {-4: 0.4, -3: 0.8, -2: 2, -1: 5, 0: 2.5, 1: 5, 2: 2, 3: 0.8, 4: 0.6, 5: 0.2}

# Structures of sections by their length in bars. A letter is a motif of two bars, a prime a varied
# repetition.
_PHRASES = {
    2: ("a",),
    4: ("ab", "aa'"),
    8: ("abac", "aa'bc", "aba'c", "abcb'", "aa'a'b", "aab'c"),
    16: ("abacaba'd", "aa'bcaa'bd", "abcdaba'e", "abacdd'bc"),
}


class MotifWriter:
    """Draws the motifs of a piece, which share a few one-bar rhythms.

    Args:
        feel: a key of `_CELLS`.
        leaning: probability that a note is an appoggiatura.
    """

    def __init__(self, rng: np.random.Generator, feel: str, metre: Metre, leaning: float) -> None:
        self._rng, self._metre, self._leaning = rng, metre, leaning
        self._rhythms = [self._draw_bar(feel) for _ in range(4)]

    def _draw_bar(self, feel: str) -> tuple[int, ...]:
        """Return the random onsets of a bar, in steps."""
        bar, beat = self._metre.bar, self._metre.beat
        while True:
            cells = [pick(self._rng, _CELLS[feel]) for _ in range(bar // beat)]
            onsets = tuple(beat * i + step for i, cell in enumerate(cells) for step in cell)
            if 2 <= len(onsets) <= 9:
                return onsets

    def motif(self) -> Motif:
        """Return a random motif of two bars."""
        rng, metre = self._rng, self._metre
        first = pick(rng, self._rhythms)
        second = first if chance(rng, 0.35) else pick(rng, self._rhythms)
        if chance(rng, 0.6):  # a rest
            second = tuple(step for step in second if step <= pick(rng, metre.rests)) or (0,)
        onsets = [*first, *(metre.bar + step for step in second)]
        longest = pick(rng, metre.longest)
        tones: list[Tone] = []
        last, height = 0, 0
        for onset, following in zip(onsets, [*onsets[1:], 2 * metre.bar], strict=True):
            move = pick(rng, _MOVES)
            if tones and tones[-1].leans:
                move = -1
            elif abs(last) > 2:  # a step back after a leap
                move = -1 if last > 0 else 1
            elif abs(height + move) > _REACH:  # turn back at the limit
                move = -move
            leans = chance(rng, self._leaning)
            tones.append(Tone(onset, min(following - onset, longest), move, leans))
            last, height = move, height + move
        return tuple(tones)

    def vary(self, motif: Motif) -> Motif:
        """Return the motif with one random change."""
        rng, tones, beat = self._rng, list(motif), self._metre.beat
        i = 1 + int(rng.random() * (len(tones) - 1)) if len(tones) > 1 else 0
        tone = tones[i]
        match pick(rng, ("ornament", "ending", "omit", "inflect", "anticipate")):
            case "ornament" if tone.length >= 4:
                half = tone.length // 2 // (beat // 3) * (beat // 3)  # eighths in 6/8
                tones[i : i + 1] = [
                    tone._replace(length=half),
                    Tone(tone.onset + half, tone.length - half, pick(rng, (-1, 1))),
                ]
            case "ending":
                tones[-1] = tones[-1]._replace(move=pick(rng, (-2, -1, 1, 2)))
            case "omit" if len(tones) > 3 and tone.onset % beat:
                longer = tone.onset + tone.length - tones[i - 1].onset
                tones[i - 1 : i + 1] = [tones[i - 1]._replace(length=longer)]
            case "anticipate" if i and tone.onset % beat == 0 and tones[i - 1].length >= 4:
                tones[i - 1] = tones[i - 1]._replace(length=tones[i - 1].length - 2)
                tones[i] = tone._replace(onset=tone.onset - 2, length=tone.length + 2)
            case _:
                tones[i] = tone._replace(move=-tone.move or 1)
        return tuple(tones)

    def phrase(self, num_bars: int) -> list[Motif]:
        """Return the random motifs of a section, one for every two bars."""
        motifs: dict[str, Motif] = {}
        plan: list[Motif] = []
        for name in pick(self._rng, _PHRASES[num_bars]):
            if name == "'":
                plan[-1] = self.vary(plan[-1])
            else:
                if name not in motifs:
                    motifs[name] = self.motif()
                plan.append(motifs[name])
        return plan


def realise_melody(
    motifs: list[Motif], harmony: Harmony, key: Key, *, middle: int, low: int, high: int
) -> list[Note]:
    """Return the notes of motifs over a harmony.

    Strong and long notes are chord tones, except appoggiaturas. Other notes belong to the scale
    over the chord. The last note of the section is a long root or third.

    Args:
        motifs: one for every two bars of the harmony.
        middle: MIDI pitch from which the first note of each motif moves.
        low, high: range in MIDI pitches.
    """
    notes: list[Note] = []
    metre = harmony.metre
    for unit, motif in enumerate(motifs):
        pitch = middle
        for i, tone in enumerate(motif):
            onset = 2 * metre.bar * unit + tone.onset
            chord = harmony.at(onset)
            rungs = ladder(scale_over(chord, key), low, high)
            rung = rungs.index(nearest(rungs, pitch)) + tone.move
            # Reflect at the ends of the range.
            rung = abs(rung) if rung < len(rungs) else 2 * len(rungs) - 2 - rung
            target = rungs[rung]
            strong = i == 0 or tone.onset % metre.bar in (0, metre.split) or tone.length >= 6
            if strong and not tone.leans:
                tones = ladder(tuple(sorted(chord.pitch_classes)), low, high)
                target = nearest(tones, target + 0.25 * np.sign(tone.move))
            notes.append(Note(onset, tone.length, target))
            pitch = target
    final = notes[-1]
    home = ladder(tuple(sorted(harmony.bars[-1][-1].pitch_classes[:2])), low, high)
    end = len(harmony.bars) * metre.bar
    notes[-1] = Note(final.onset, min(end - final.onset, 12), nearest(home, final.pitch))
    return notes


def shorten_before_next(notes: list[Note], release: int) -> list[Note]:
    """Return the notes; those above four steps end `release` steps before a note that follows."""
    out = [
        a._replace(length=a.length - release)
        if a.length > 4 and a.onset + a.length == b.onset
        else a
        for a, b in pairwise(notes)
    ]
    return [*out, *notes[-1:]]


def breathe(notes: list[Note], phrase: int) -> list[Note]:
    """Return the notes; those at the end of a phrase end an eighth before the next phrase.

    Args:
        phrase: length of a phrase in steps.
    """
    shortened = []
    for note in notes:
        longest = max(1, phrase - note.onset % phrase - 2)
        shortened.append(note._replace(length=min(note.length, longest)))
    return shortened
