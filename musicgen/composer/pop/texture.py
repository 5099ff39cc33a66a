"""Piano accompaniments: one-bar patterns of strokes for any chord."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from musicgen.composer.draw import chance, pick
from musicgen.composer.groove.patterns import parse
from musicgen.composer.harmony import Chord, ladder, nearest, voice
from musicgen.composer.pop.melody import Harmony, Metre
from musicgen.composer.render import Rows

BASS, OCTAVE, FIFTH, TENTH = -1, -2, -3, -4
"""Voices of the left hand; those >= 0 are notes of the right hand's chord."""

_BASS_RANGE = (29, 47)
_CHORD_RANGE = (50, 67)
CHORD = (0, 1, 2)
_SYMBOLS = {  # in texts: voices of the left hand, the chord, its notes
    "1": (BASS,), "8": (OCTAVE,), "o": (BASS, OCTAVE), "5": (FIFTH,), "3": (TENTH,), "x": CHORD,
    "a": (0,), "b": (1,), "c": (2,), "d": (3,),
}  # fmt: skip


class Stroke(NamedTuple):
    """Voices struck together: step in the bar, length in steps, and velocity offset."""

    step: int
    length: int
    voices: tuple[int, ...]
    accent: int = 0


Texture = list[Stroke]
Textures = tuple[Texture, Texture]
"""Of the odd and of the even bars."""


def _low(rng: np.random.Generator, *, moving: float) -> Texture:
    """Draw a left hand of long notes: octaves or single notes, once or twice a bar."""
    voices = pick(rng, {(BASS,): 1, (BASS, OCTAVE): 2})
    if not chance(rng, moving):
        return [Stroke(0, 16, voices, 2)]
    second = pick(rng, (6, 8, 8, 10, 12))
    answer = pick(rng, (voices, (FIFTH,), (BASS,)))
    return [Stroke(0, second, voices, 2), Stroke(second, 16 - second, answer)]


def _block(rng: np.random.Generator, off: int) -> Texture:
    onsets = pick(rng, ((0,), (0, 8), (0, 4, 8, 12), (0, 8, 12), (0, 4, 8), (4, 12)))
    return _low(rng, moving=0.4) + _chords(onsets, hold=True)


def _pulse(rng: np.random.Generator, off: int) -> Texture:
    onsets = tuple(_eighths(off)[chance(rng, 0.5) :])
    return _low(rng, moving=0.7) + _chords(onsets, hold=False)


def _syncopated(rng: np.random.Generator, off: int) -> Texture:
    eighths = pick(rng, ("036", "035", "0235", "237", "0136", "1357", "0347"))
    onsets = tuple(_eighths(off)[int(i)] for i in eighths)
    return _low(rng, moving=0.8) + _chords(onsets, hold=chance(rng, 0.7))


def _arpeggio(rng: np.random.Generator, off: int) -> Texture:
    """Draw broken chords in eighths, often held to the end of the bar as with a pedal."""
    orders = "1abcdcba 1abc1abc 1acbcacb 15abcba5 1cbabcba 153aba35 1bac5bac"
    return _broken(pick(rng, orders.split()), _eighths(off), chance(rng, 0.6))


def _rolling(rng: np.random.Generator, off: int) -> Texture:
    """Draw broken chords in sixteenths, or in eighths if the piece swings."""
    if off == 3:
        return _arpeggio(rng, off)
    cell = pick(rng, ("abcb", "acbc", "cbab", "abcd", "babc"))
    start = pick(rng, ("1" + cell[1:], cell))
    return _broken(f"1{cell[1:]}{cell}{start}{cell}", list(range(16)), pedal=False)


def _alberti(rng: np.random.Generator, off: int) -> Texture:
    cell = pick(rng, ("1bab", "1cac", "1b5b", "1cbc"))
    return _broken(cell * 2, _eighths(off), pedal=False)


def _tenths(rng: np.random.Generator, off: int) -> Texture:
    """Draw alternating roots, fifths and tenths below occasional chords."""
    cell = pick(rng, ("1535", "1353"))
    onsets = pick(rng, ((0,), (8,), (4, 12), ()))
    low = _broken(cell, [0, 4, 8, 12], pedal=True)
    if chance(rng, 0.4):
        low = _broken(cell * 2, _eighths(off), pedal=False)
    return low + _chords(onsets, hold=True)


def _stride(rng: np.random.Generator, off: int) -> Texture:
    third = pick(rng, ((FIFTH,), (BASS,), (OCTAVE,)))
    length = pick(rng, (2, 4))
    return [
        Stroke(0, 4, (BASS,), 3),
        Stroke(4, length, CHORD),
        Stroke(8, 4, third, 2),
        Stroke(12, length, CHORD),
        *([Stroke(12 + off, 4 - off, (FIFTH,))] if chance(rng, 0.3) else []),
    ]


def _offbeat(rng: np.random.Generator, off: int) -> Texture:
    """Draw a bass on the beats and chords between them."""
    beats = pick(rng, ((0, 4, 8, 12), (0, 8), (0, 8, 12)))
    low = [
        Stroke(beat, 3, pick(rng, ((BASS,), (FIFTH,))) if beat else (BASS,), 2) for beat in beats
    ]
    return low + [Stroke(beat + off, 4 - off, CHORD) for beat in (0, 4, 8, 12)]


def _walking(rng: np.random.Generator, off: int) -> Texture:
    """Draw a bass in quarters through the chord, with off-beat chords."""
    line = pick(rng, ("1358", "1585"))
    onsets = pick(rng, ((4 + off,), (off, 8 + off), (4, 8 + off), (4 + off, 12 + off)))
    return _broken(line, [0, 4, 8, 12], pedal=False) + _chords(onsets, hold=chance(rng, 0.3))


def _sparse(rng: np.random.Generator, off: int) -> Texture:
    """Draw a held chord and an echo of two or three of its notes."""
    onsets = pick(rng, ((4, 8), (8, 12), (4, 8, 12), (8, 8 + off, 12), (4, 4 + off, 8)))
    voices = pick(rng, ((1, 2, 3), (2, 1, 0), (2, 3, 2), (0, 1, 2)))
    return [
        Stroke(0, 16, (BASS, FIFTH), 2),
        *_chords((0,), hold=True),
        *(Stroke(step, 16 - step, (v,), -2) for step, v in zip(onsets, voices, strict=False)),
    ]


def _chords(onsets: tuple[int, ...], *, hold: bool) -> Texture:
    ends = (*onsets[1:], 16)
    return [
        Stroke(step, end - step if hold else min(end - step, 2), CHORD)
        for step, end in zip(onsets, ends, strict=False)
    ]


def _eighths(off: int) -> list[int]:
    return [beat + step for beat in (0, 4, 8, 12) for step in (0, off)]


def _broken(order: str, steps: list[int], pedal: bool) -> Texture:
    ends = [*steps[1:], 16]
    return [
        Stroke(step, (16 if pedal else end) - step, _SYMBOLS[symbol], 2 if symbol == "1" else 0)
        for symbol, step, end in zip(order, steps, ends, strict=True)
    ]


def _hands(left: str, right: str, rng: np.random.Generator, off: int) -> Texture:
    """Draw one of the patterns of each hand for a bar of twelve steps (see `groove.patterns`)."""
    strokes = [
        Stroke(hit.onset, hit.length, _SYMBOLS[hit.symbol], 0 if hit.onset else 2)
        for hand in (left, right)
        for hit in parse(pick(rng, hand.split(" ")), 12)
    ]
    pedal = not right and chance(rng, 0.6)
    return [s._replace(length=12 - s.step) if pedal else s for s in strokes]


TEXTURES: dict[str, dict[str, tuple[Callable[[np.random.Generator, int], Texture], float]]] = {
    "4/4": {
        "block": (_block, 0.3), "pulse": (_pulse, 0.85), "syncopated": (_syncopated, 0.75),
        "arpeggio": (_arpeggio, 0.4), "rolling": (_rolling, 0.8), "alberti": (_alberti, 0.4),
        "tenths": (_tenths, 0.3), "stride": (_stride, 0.7), "offbeat": (_offbeat, 0.65),
        "walking": (_walking, 0.55), "sparse": (_sparse, 0.1),
    },
    "3/4": {
        "held": (partial(_hands, "1-- o-- 1-5", "x-- x-x xx-"), 0.0),
        "lyric": (partial(_hands, "1-- 1-5", ".abcba .ab.cb ..abcb"), 0.25),
        "arpeggio": (partial(_hands, "1abcba 15abab 1acbcb 153ab3 15a3a5", ""), 0.4),
        "waltz": (partial(_hands, "1.. 1-. 1-- o-.", ".xx .xx .x- .x..xx"), 0.55),
        "lilt": (partial(_hands, "1-- 1-5 o--", "x..x.. ..x-x- x-xx-x x-.xx-"), 0.65),
        "flowing": (partial(_hands, "1abcbabcbaba 15abcbabcbab 1acbcabcacbc", ""), 0.75),
        "pulse": (partial(_hands, "o-- o-1 1-5", "xxxxxx .xxxxx .xx.xx"), 0.9),
    },
    "6/8": {
        "held": (partial(_hands, "1- o- 15", "x- xx"), 0.0),
        "lyric": (partial(_hands, "1- 15", ".abcba ..abcb .ab.cb"), 0.2),
        "arpeggio": (partial(_hands, "1abcba 1ab1ab 15a15a 15ab35 1acbca", ""), 0.4),
        "barcarolle": (partial(_hands, "1..5.. 1--1-- 1-----", ".xx.xx ..x..x .x-.x-"), 0.5),
        "rocking": (partial(_hands, "1- 15 oo", "abcabc cbacba abacba xbcxbc"), 0.6),
        "lilt": (partial(_hands, "15 o- 1-51-5", "x-xx-x x.xx.x x--x-x"), 0.75),
        "rolling": (partial(_hands, "1abcbabcdcba 1abcba1abcba 15abcbabcbab", ""), 0.8),
        "pulse": (partial(_hands, "o- o1 o--1-5", "xxxxxx .xxxxx .xx.xx"), 0.95),
    },
}  # fmt: skip
"""Accompaniments and the energy that suits each best, 0–1."""


def draw_texture(rng: np.random.Generator, energy: float, feel: str, metre: Metre) -> Textures:
    """Draw two bars of accompaniment that suit a section's energy; often they are the same."""
    known = TEXTURES[metre.name]
    weights = {name: max(0.02, 0.45 - abs(best - energy)) for name, (_, best) in known.items()}
    build = known[pick(rng, weights)][0]
    off = 3 if feel == "swing" else 2
    first = build(rng, off)
    return first, first if chance(rng, 0.5) else build(rng, off)


def play(textures: Textures, harmony: Harmony, *, ends: bool) -> Rows:
    """Return (onset, length, pitch, accent) rows, in steps; the last bar of a section is held.

    Where a piece `ends`, the last bar is one chord. Voicings move least; strokes end with chords.
    """
    rows: Rows = []
    voicing: tuple[int, ...] = ()
    bass = 38
    chord: Chord | None = None
    rooted = False  # whether the chord's bass has been struck
    end, split, num_bars = harmony.metre.bar, harmony.metre.split, len(harmony.bars)
    for bar, chords in enumerate(harmony.bars):
        texture = textures[bar % 2]
        if bar == num_bars - 1 and ends:
            texture = [Stroke(0, end, (BASS, OCTAVE), 2), Stroke(0, end, CHORD)]
        elif bar == num_bars - 1 and num_bars > 2:
            texture = [
                s._replace(length=end - s.step if s.step + s.length >= split else s.length)
                for s in texture
                if s.step < split
            ]
        if len(chords) == 2:  # mark every change of chord within the bar
            if not any(s.step == split and min(s.voices) < 0 for s in texture):
                texture = [*texture, Stroke(split, end - split, (BASS,), 1)]
            if not any(s.step >= split and max(s.voices) >= 0 for s in texture):
                texture = [*texture, Stroke(split, end - split, CHORD)]
        for stroke in sorted(texture):
            onset = bar * end + stroke.step
            if (now := harmony.at(onset)) != chord:
                chord = now
                bass = nearest(ladder((chord.bass,), *_BASS_RANGE), (bass + 38) / 2)
                voicing = voice(chord, voicing, *_CHORD_RANGE, 3)
                rooted = False
            voices = stroke.voices
            if not rooted and min(voices) < 0:
                rooted = True
                if BASS not in voices:
                    voices = (BASS, *(v for v in voices if v >= 0))
            until = (split if stroke.step < split and len(chords) == 2 else end) - stroke.step
            rows += [
                (onset, min(stroke.length, until), _pitch(v, chord, bass, voicing), stroke.accent)
                for v in voices
            ]
    return rows


def _pitch(v: int, chord: Chord, bass: int, voicing: tuple[int, ...]) -> int:
    if v >= 0:
        return voicing[v % len(voicing)] + 12 * (v // len(voicing))
    if v in (BASS, OCTAVE):
        return bass + 12 * (v == OCTAVE)
    # Use the chord tone nearest to the interval, so that inverted chords keep their notes.
    target = bass + (7 if v == FIFTH else 16)
    return nearest(ladder(tuple(sorted(chord.pitch_classes)), bass + 1, bass + 24), target)
