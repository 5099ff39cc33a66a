"""Piano accompaniments: one-bar patterns of strokes for any chord."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from musicgen.composer.draw import chance, pick
from musicgen.composer.harmony import Chord, ladder, nearest, voice
from musicgen.composer.pop.melody import BAR, Harmony, chord_at

BASS, OCTAVE, FIFTH, TENTH = -1, -2, -3, -4
"""Voices of the left hand; those >= 0 are notes of the right hand's chord."""

_BASS_RANGE = (29, 47)
_CHORD_RANGE = (50, 67)
CHORD = (0, 1, 2)


class Stroke(NamedTuple):
    """Voices struck together: step in the bar, length in steps, and velocity offset."""

    step: int
    length: int
    voices: tuple[int, ...]
    accent: int = 0


Texture = list[Stroke]


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
    onsets = tuple(beat + step for beat in (0, 4, 8, 12) for step in (0, off))
    if chance(rng, 0.5):
        onsets = onsets[1:]
    return _low(rng, moving=0.7) + _chords(onsets, hold=False)


def _syncopated(rng: np.random.Generator, off: int) -> Texture:
    late = 4 + off
    onsets = pick(
        rng,
        (
            (0, late, 12), (0, late, 8 + off), (0, 4, late, 8 + off), (4, late, 12 + off),
            (0, off, late, 12), (off, late, 8 + off, 12 + off), (0, late, 8, 12 + off),
        ),
    )  # fmt: skip
    return _low(rng, moving=0.8) + _chords(onsets, hold=chance(rng, 0.7))


def _arpeggio(rng: np.random.Generator, off: int) -> Texture:
    """Draw broken chords in eighths, often held to the end of the bar as with a pedal."""
    order = pick(
        rng,
        (
            (BASS, 0, 1, 2, 3, 2, 1, 0), (BASS, 0, 1, 2, BASS, 0, 1, 2),
            (BASS, 0, 2, 1, 2, 0, 2, 1), (BASS, FIFTH, 0, 1, 2, 1, 0, FIFTH),
            (BASS, 2, 1, 0, 1, 2, 1, 0), (BASS, FIFTH, TENTH, 0, 1, 0, TENTH, FIFTH),
            (BASS, 1, 0, 2, FIFTH, 1, 0, 2),
        ),
    )  # fmt: skip
    return _broken(order, [4 * (i // 2) + off * (i % 2) for i in range(8)], chance(rng, 0.6))


def _rolling(rng: np.random.Generator, off: int) -> Texture:
    """Draw broken chords in sixteenths, or in eighths if the piece swings."""
    if off == 3:
        return _arpeggio(rng, off)
    cell = pick(rng, ((0, 1, 2, 1), (0, 2, 1, 2), (2, 1, 0, 1), (0, 1, 2, 3), (1, 0, 1, 2)))
    start = pick(rng, ((BASS, *cell[1:]), cell))
    order = (BASS, *cell[1:], *cell, *start, *cell)
    return _broken(order, list(range(16)), pedal=False)


def _alberti(rng: np.random.Generator, off: int) -> Texture:
    cell = pick(rng, ((BASS, 1, 0, 1), (BASS, 2, 0, 2), (BASS, 1, FIFTH, 1), (BASS, 2, 1, 2)))
    return _broken(cell * 2, [4 * (i // 2) + off * (i % 2) for i in range(8)], pedal=False)


def _tenths(rng: np.random.Generator, off: int) -> Texture:
    """Draw alternating roots, fifths and tenths below occasional chords."""
    cell = pick(rng, ((BASS, FIFTH, TENTH, FIFTH), (BASS, TENTH, FIFTH, TENTH)))
    onsets = pick(rng, ((0,), (8,), (4, 12), ()))
    low = _broken(cell, [0, 4, 8, 12], pedal=True)
    if chance(rng, 0.4):
        low = _broken(cell * 2, [4 * (i // 2) + off * (i % 2) for i in range(8)], pedal=False)
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
    line = pick(rng, ((BASS, TENTH, FIFTH, OCTAVE), (BASS, FIFTH, OCTAVE, FIFTH)))
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
    ends = (*onsets[1:], BAR)
    return [
        Stroke(step, end - step if hold else min(end - step, 2), CHORD)
        for step, end in zip(onsets, ends, strict=False)
    ]


def _broken(order: tuple[int, ...], steps: list[int], pedal: bool) -> Texture:
    ends = [*steps[1:], BAR]
    return [
        Stroke(step, (BAR if pedal else end) - step, (v,), 2 if v == BASS else 0)
        for v, step, end in zip(order, steps, ends, strict=True)
    ]


TEXTURES: dict[str, tuple[Callable[[np.random.Generator, int], Texture], float]] = {
    "block": (_block, 0.3), "pulse": (_pulse, 0.85), "syncopated": (_syncopated, 0.75),
    "arpeggio": (_arpeggio, 0.4), "rolling": (_rolling, 0.8), "alberti": (_alberti, 0.4),
    "tenths": (_tenths, 0.3), "stride": (_stride, 0.7), "offbeat": (_offbeat, 0.65),
    "walking": (_walking, 0.55), "sparse": (_sparse, 0.1),
}  # fmt: skip
"""Accompaniments and the energy that suits each best, 0–1."""


def draw_texture(rng: np.random.Generator, energy: float, feel: str) -> tuple[Texture, Texture]:
    """Draw two bars of accompaniment that suit a section's energy; often they are the same."""
    weights = {name: max(0.02, 0.45 - abs(best - energy)) for name, (_, best) in TEXTURES.items()}
    build = TEXTURES[pick(rng, weights)][0]
    off = 3 if feel == "swing" else 2
    first = build(rng, off)
    return first, first if chance(rng, 0.5) else build(rng, off)


def play(textures: tuple[Texture, Texture], harmony: Harmony) -> list[tuple[int, int, int, int]]:
    """Return (onset, length, pitch, accent) rows, in steps; the last bar of a section is held.

    Voicings move as little as possible. A stroke ends with its chord.
    """
    rows = []
    voicing: tuple[int, ...] = ()
    bass = 38
    chord: Chord | None = None
    rooted = False  # whether the chord's bass has been struck
    for bar, chords in enumerate(harmony):
        texture = textures[bar % 2]
        if bar == len(harmony) - 1 and len(harmony) > 2:
            texture = [
                s._replace(length=BAR - s.step if s.step + s.length >= 8 else s.length)
                for s in texture
                if s.step < 8
            ]
        span = BAR // len(chords)
        if len(chords) == 2:  # mark every change of chord within the bar
            if not any(s.step == 8 and min(s.voices) < 0 for s in texture):
                texture = [*texture, Stroke(8, 8, (BASS,), 1)]
            if not any(s.step >= 8 and max(s.voices) >= 0 for s in texture):
                texture = [*texture, Stroke(8, 8, CHORD)]
        for stroke in sorted(texture):
            onset = bar * BAR + stroke.step
            if (now := chord_at(harmony, onset)) != chord:
                chord = now
                bass = nearest(ladder((chord.bass,), *_BASS_RANGE), (bass + 38) / 2)
                voicing = voice(chord, voicing, *_CHORD_RANGE, 3)
                rooted = False
            voices = stroke.voices
            if not rooted and min(voices) < 0:
                rooted = True
                if BASS not in voices:
                    voices = (BASS, *(v for v in voices if v >= 0))
            until = (stroke.step // span + 1) * span - stroke.step
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
