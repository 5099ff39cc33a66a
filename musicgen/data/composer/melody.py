"""Melodies: two-bar motifs laid over the harmony, repeated, sequenced and varied in phrases."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from musicgen.data.composer.draw import chance, pick
from musicgen.data.composer.harmony import Chord, Key, ladder, nearest, scale_over

BAR = 16
"""Steps of a bar: sixteenth notes."""

_UNIT = 2 * BAR  # the length of a motif


class Tone(NamedTuple):
    """A motif's note: onset and length in steps, and the scale steps from the note before.

    The first note's move counts from the section's middle pitch.
    """

    onset: int
    length: int
    move: int


class Note(NamedTuple):
    """A note of a part: onset and length in steps, MIDI pitch."""

    onset: int
    length: int
    pitch: int


Motif = tuple[Tone, ...]
Harmony = list[tuple[Chord, ...]]  # per bar: one chord, or two of half a bar

# Onsets within one beat, with their weights, for each feel. Swung off-beats fall on the last step.
_CELLS: dict[str, dict[tuple[int, ...], float]] = {
    "straight": {(0,): 4, (0, 2): 5, (2,): 1.5, (): 1},
    "sixteenth": {
        (0,): 3, (0, 2): 3, (0, 3): 2, (2,): 1, (3,): 0.8, (): 1, (0, 2, 3): 1.5, (0, 1, 2): 0.6,
        (1, 2): 0.4, (0, 1, 2, 3): 0.4,
    },
    "swing": {(0,): 4, (0, 3): 5, (3,): 2, (): 1},
}  # fmt: skip

_REACH = 5  # scale steps that a motif may stray from the middle
_MOVES = {-4: 0.4, -3: 0.8, -2: 2, -1: 5, 0: 2.5, 1: 5, 2: 2, 3: 0.8, 4: 0.6, 5: 0.2}

# Phrase structures over motif units of two bars; a prime asks for a varied repetition.
_PHRASES = {
    2: ("a",),
    4: ("ab", "aa'"),
    8: ("abac", "aa'bc", "aba'c", "abcb'", "aa'a'b", "aab'c"),
    16: ("abacaba'd", "aa'bcaa'bd", "abcdaba'e", "abacdd'bc"),
}


class MotifWriter:
    """Motifs of one piece, built from a few one-bar rhythms so that they belong together."""

    def __init__(self, rng: np.random.Generator, feel: str) -> None:
        self._rng = rng
        self._rhythms = [self._draw_bar(feel) for _ in range(3)]

    def _draw_bar(self, feel: str) -> tuple[int, ...]:
        while True:
            cells = [pick(self._rng, _CELLS[feel]) for _ in range(4)]
            onsets = tuple(4 * beat + step for beat, cell in enumerate(cells) for step in cell)
            if 2 <= len(onsets) <= 9:
                return onsets

    def motif(self) -> Motif:
        rng = self._rng
        first = pick(rng, self._rhythms)
        second = first if chance(rng, 0.35) else pick(rng, self._rhythms)
        if chance(rng, 0.6):  # a breath
            second = tuple(step for step in second if step <= pick(rng, (4, 8, 10))) or (0,)
        onsets = [*first, *(BAR + step for step in second)]
        longest = pick(rng, (4, 8, 8, 12))
        tones, last, height = [], 0, 0
        for onset, following in zip(onsets, [*onsets[1:], _UNIT], strict=True):
            move = pick(rng, _MOVES)
            if abs(last) > 2:  # a leap is answered by a step the other way
                move = -1 if last > 0 else 1
            elif abs(height + move) > _REACH:  # and the line turns before it strays
                move = -move
            tones.append(Tone(onset, min(following - onset, longest), move))
            last, height = move, height + move
        return tuple(tones)

    def vary(self, motif: Motif) -> Motif:
        """The motif with one thing changed."""
        rng, tones = self._rng, list(motif)
        i = 1 + int(rng.random() * (len(tones) - 1)) if len(tones) > 1 else 0
        tone = tones[i]
        match pick(rng, ("ornament", "ending", "omit", "inflect")):
            case "ornament" if tone.length >= 4:
                half = tone.length // 2
                tones[i : i + 1] = [
                    tone._replace(length=half),
                    Tone(tone.onset + half, tone.length - half, pick(rng, (-1, 1))),
                ]
            case "ending":
                tones[-1] = tones[-1]._replace(move=pick(rng, (-2, -1, 1, 2)))
            case "omit" if len(tones) > 3 and tone.onset % 4:
                tones[i - 1] = tones[i - 1]._replace(
                    length=tone.onset + tone.length - tones[i - 1].onset
                )
                del tones[i]
            case _:
                tones[i] = tone._replace(move=-tone.move or 1)
        return tuple(tones)

    def phrase(self, num_bars: int) -> list[Motif]:
        """The motifs of a section, one for every two bars."""
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


def sing(
    motifs: list[Motif], harmony: Harmony, key: Key, *, middle: int, low: int, high: int
) -> list[Note]:
    """Lay motifs over the harmony.

    Strong and long notes fall on chord tones, the others on the scale over the chord; the last
    note of the section is a long root or third.

    Args:
        middle: the MIDI pitch about which motifs start.
        low, high: the range in MIDI pitches.
    """
    notes: list[Note] = []
    for unit, motif in enumerate(motifs):
        pitch = middle
        for i, tone in enumerate(motif):
            onset = unit * _UNIT + tone.onset
            chord = chord_at(harmony, onset)
            scale = ladder(scale_over(chord, key), low, high)
            rung = scale.index(nearest(scale, pitch)) + tone.move
            # The range's ends throw the line back.
            rung = abs(rung) if rung < len(scale) else 2 * len(scale) - 2 - rung
            target = scale[rung]
            if i == 0 or tone.onset % 8 == 0 or tone.length >= 6:
                tones = ladder(tuple(sorted(chord.pitch_classes)), low, high)
                target = nearest(tones, target + 0.25 * np.sign(tone.move))
            notes.append(Note(onset, tone.length, target))
            pitch = target
    final = notes[-1]
    home = ladder(tuple(sorted(harmony[-1][-1].pitch_classes[:2])), low, high)
    end = len(harmony) * BAR
    notes[-1] = Note(final.onset, min(end - final.onset, 12), nearest(home, final.pitch))
    return notes


def chord_at(harmony: Harmony, step: int) -> Chord:
    bar = harmony[step // BAR]
    return bar[(step % BAR) * len(bar) // BAR]


def breathe(notes: list[Note], release: int) -> list[Note]:
    """Cut notes of more than a beat by `release` steps where another follows at once."""
    out = [
        a._replace(length=a.length - release)
        if a.length > 4 and a.onset + a.length == b.onset
        else a
        for a, b in pairwise(notes)
    ]
    return [*out, *notes[-1:]]
