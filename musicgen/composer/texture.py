"""Piano accompaniments: one-bar patterns that fit any chord."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from numpy.random import Generator

from musicgen.composer.draw import StepNotes, chance, pick
from musicgen.composer.families import parse
from musicgen.composer.harmony import Chord, close_voicing, ladder, nearest
from musicgen.composer.melody import Chords, Metre

BASS, OCTAVE, FIFTH, TENTH = -1, -2, -3, -4
"""Tones of the left hand. Numbers from 0 on are notes of the right hand's chord, upwards."""

_BASS_RANGE, _BASS_CENTRE = (29, 47), 38
_CHORD_RANGE = (50, 67)
CHORD = (0, 1, 2)
_SYMBOLS = {  # in text patterns: tones of the left hand, the chord, its notes
    "1": (BASS,), "8": (OCTAVE,), "o": (BASS, OCTAVE), "5": (FIFTH,), "3": (TENTH,), "x": CHORD,
    "a": (0,), "b": (1,), "c": (2,), "d": (3,),
}  # fmt: skip


class Stroke(NamedTuple):
    """Tones that begin together: step in the bar, length in steps, and velocity offset."""

    step: int
    length: int
    tones: tuple[int, ...]
    accent: int = 0


Texture = list[Stroke]
Textures = tuple[Texture, Texture]
"""Texture of the odd bars and of the even bars."""

# The functions below draw a bar in 4/4. `off` is the step of an off-beat in its beat: 2 if eighths
# are straight, 3 if they swing.


def _low(rng: Generator, *, moving: float) -> Texture:
    """Draw long notes of the left hand, octaves or single notes; two with probability `moving`."""
    tones = pick(rng, {(BASS,): 1, (BASS, OCTAVE): 2})
    if not chance(rng, moving):
        return [Stroke(0, 16, tones, 2)]
    second = pick(rng, (6, 8, 8, 10, 12))
    answer = pick(rng, (tones, (FIFTH,), (BASS,)))
    return [Stroke(0, second, tones, 2), Stroke(second, 16 - second, answer)]


def _block(rng: Generator, off: int) -> Texture:
    """Draw sustained chords on beats."""
    onsets = pick(rng, ((0,), (0, 8), (0, 4, 8, 12), (0, 8, 12), (0, 4, 8), (4, 12)))
    return _low(rng, moving=0.4) + _chords(onsets, hold=True)


def _pulse(rng: Generator, off: int) -> Texture:
    """Draw short chords on all eighths, with or without the first."""
    first = 1 if chance(rng, 0.5) else 0
    return _low(rng, moving=0.7) + _chords(_eighths(off)[first:], hold=False)


def _syncopated(rng: Generator, off: int) -> Texture:
    """Draw syncopated chords on some eighths."""
    eighths = pick(rng, ("036", "035", "0235", "237", "0136", "1357", "0347"))
    onsets = [_eighths(off)[int(i)] for i in eighths]
    return _low(rng, moving=0.8) + _chords(onsets, hold=chance(rng, 0.7))


def _arpeggio(rng: Generator, off: int) -> Texture:
    """Draw broken chords in eighths, often held to the end of the bar as if by a pedal."""
    orders = "1abcdcba 1abc1abc 1acbcacb 15abcba5 1cbabcba 153aba35 1bac5bac"
    return _broken(pick(rng, orders.split()), _eighths(off), chance(rng, 0.6))


def _rolling(rng: Generator, off: int) -> Texture:
    """Draw broken chords in sixteenths, or in eighths if the piece swings."""
    if off == 3:
        return _arpeggio(rng, off)
    cell = pick(rng, ("abcb", "acbc", "cbab", "abcd", "babc"))
    start = pick(rng, ("1" + cell[1:], cell))
    return _broken(f"1{cell[1:]}{cell}{start}{cell}", range(16))


def _alberti(rng: Generator, off: int) -> Texture:
    """Draw an Alberti bass in eighths."""
    cell = pick(rng, ("1bab", "1cac", "1b5b", "1cbc"))
    return _broken(cell * 2, _eighths(off))


def _tenths(rng: Generator, off: int) -> Texture:
    """Draw alternating roots, fifths and tenths below occasional chords."""
    cell = pick(rng, ("1535", "1353"))
    onsets = pick(rng, ((0,), (8,), (4, 12), ()))
    low = _broken(cell, [0, 4, 8, 12], pedal=True)
    if chance(rng, 0.4):
        low = _broken(cell * 2, _eighths(off))
    return low + _chords(onsets, hold=True)


def _stride(rng: Generator, off: int) -> Texture:
    """Draw a stride accompaniment: bass notes on odd beats, chords on even ones."""
    third = pick(rng, ((FIFTH,), (BASS,), (OCTAVE,)))
    length = pick(rng, (2, 4))
    return [
        Stroke(0, 4, (BASS,), 3),
        Stroke(4, length, CHORD),
        Stroke(8, 4, third, 2),
        Stroke(12, length, CHORD),
        *([Stroke(12 + off, 4 - off, (FIFTH,))] if chance(rng, 0.3) else []),
    ]


def _offbeat(rng: Generator, off: int) -> Texture:
    """Draw a bass on the beats and chords between them."""
    beats = pick(rng, ((0, 4, 8, 12), (0, 8), (0, 8, 12)))
    low = [
        Stroke(beat, 3, pick(rng, ((BASS,), (FIFTH,))) if beat else (BASS,), 2) for beat in beats
    ]
    return low + [Stroke(beat + off, 4 - off, CHORD) for beat in (0, 4, 8, 12)]


def _walking(rng: Generator, off: int) -> Texture:
    """Draw a bass in quarter notes through the chord, with off-beat chords."""
    line = pick(rng, ("1358", "1585"))
    onsets = pick(rng, ((4 + off,), (off, 8 + off), (4, 8 + off), (4 + off, 12 + off)))
    return _broken(line, [0, 4, 8, 12]) + _chords(onsets, hold=chance(rng, 0.3))


def _sparse(rng: Generator, off: int) -> Texture:
    """Draw a sustained chord and two or three single notes of it."""
    onsets = pick(rng, ((4, 8), (8, 12), (4, 8, 12), (8, 8 + off, 12), (4, 4 + off, 8)))
    echo = pick(rng, ((1, 2, 3), (2, 1, 0), (2, 3, 2), (0, 1, 2)))
    return [
        Stroke(0, 16, (BASS, FIFTH), 2),
        *_chords((0,), hold=True),
        *(Stroke(step, 16 - step, (tone,), -2) for step, tone in zip(onsets, echo, strict=False)),
    ]


def _chords(onsets: Sequence[int], *, hold: bool) -> Texture:
    """Return chords at these steps; without `hold` they are at most two steps long."""
    ends = (*onsets[1:], 16)
    return [
        Stroke(step, end - step if hold else min(end - step, 2), CHORD)
        for step, end in zip(onsets, ends, strict=False)
    ]


def _eighths(off: int) -> list[int]:
    """Return the steps of the eighths of a bar."""
    return [beat + step for beat in (0, 4, 8, 12) for step in (0, off)]


def _broken(order: str, steps: Sequence[int], pedal: bool = False) -> Texture:
    """Return single tones by their symbols at these steps; with `pedal` they last to the end."""
    ends = [*steps[1:], 16]
    return [
        Stroke(step, (16 if pedal else end) - step, _SYMBOLS[symbol], 2 if symbol == "1" else 0)
        for symbol, step, end in zip(order, steps, ends, strict=True)
    ]


def _hands(left: str, right: str, rng: Generator, off: int) -> Texture:
    """Draw a bar of twelve steps: one of the patterns of each hand (see `families`)."""
    strokes = [
        Stroke(onset, length, _SYMBOLS[symbol], 0 if onset else 2)
        for hand in (left, right)
        for onset, length, symbol in parse(pick(rng, hand.split(" ")), 12)
    ]
    pedal = not right and chance(rng, 0.6)
    return [s._replace(length=12 - s.step) if pedal else s for s in strokes]


# Patterns of the left and the right hand in bars of twelve steps, and an energy as in `TEXTURES`.
_HANDS = {
    "3/4": {
        "held": ("1-- o-- 1-5", "x-- x-x xx-", 0.0),
        "lyric": ("1-- 1-5", ".abcba .ab.cb ..abcb", 0.25),
        "arpeggio": ("1abcba 15abab 1acbcb 153ab3 15a3a5", "", 0.4),
        "waltz": ("1.. 1-. 1-- o-.", ".xx .xx .x- .x..xx", 0.55),
        "lilt": ("1-- 1-5 o--", "x..x.. ..x-x- x-xx-x x-.xx-", 0.65),
        "flowing": ("1abcbabcbaba 15abcbabcbab 1acbcabcacbc", "", 0.75),
        "pulse": ("o-- o-1 1-5", "xxxxxx .xxxxx .xx.xx", 0.9),
    },
    "6/8": {
        "held": ("1- o- 15", "x- xx", 0.0),
        "lyric": ("1- 15", ".abcba ..abcb .ab.cb", 0.2),
        "arpeggio": ("1abcba 1ab1ab 15a15a 15ab35 1acbca", "", 0.4),
        "barcarolle": ("1..5.. 1--1-- 1-----", ".xx.xx ..x..x .x-.x-", 0.5),
        "rocking": ("1- 15 oo", "abcabc cbacba abacba xbcxbc", 0.6),
        "lilt": ("15 o- 1-51-5", "x-xx-x x.xx.x x--x-x", 0.75),
        "rolling": ("1abcbabcdcba 1abcba1abcba 15abcbabcbab", "", 0.8),
        "pulse": ("o- o1 o--1-5", "xxxxxx .xxxxx .xx.xx", 0.95),
    },
}  # fmt: skip
TEXTURES: dict[str, dict[str, tuple[Callable[[Generator, int], Texture], float]]] = {
    "4/4": {
        "block": (_block, 0.3), "pulse": (_pulse, 0.85), "syncopated": (_syncopated, 0.75),
        "arpeggio": (_arpeggio, 0.4), "rolling": (_rolling, 0.8), "alberti": (_alberti, 0.4),
        "tenths": (_tenths, 0.3), "stride": (_stride, 0.7), "offbeat": (_offbeat, 0.65),
        "walking": (_walking, 0.55), "sparse": (_sparse, 0.1),
    },
    **{
        metre: {name: (partial(_hands, left, right), x) for name, (left, right, x) in hands.items()}
        for metre, hands in _HANDS.items()
    },
}  # fmt: skip
"""Functions that draw a texture, and the energy for which each fits best, 0–1."""


def draw_texture(rng: Generator, energy: float, feel: str, metre: Metre) -> Textures:
    """Return a random texture for the energy of a section; both bars are the same in half of them.

    Args:
        energy: 0–1.
        feel: rhythmic feel of the song; `swing` delays off-beats.
    """
    textures = TEXTURES[metre.name]
    weights = {name: max(0.02, 0.45 - abs(best - energy)) for name, (_, best) in textures.items()}
    draw, _ = textures[pick(rng, weights)]
    off = 3 if feel == "swing" else 2
    first = draw(rng, off)
    return first, first if chance(rng, 0.5) else draw(rng, off)


def vary(rng: Generator, texture: Texture, beat: int) -> Texture:
    """Return the texture of a bar with one random change, such as a pianist makes in a repetition.

    Args:
        beat: steps in a beat.
    """
    strokes = sorted(texture)
    i = int(rng.integers(len(strokes)))
    stroke = strokes[i]
    match pick(rng, {"revoice": 3, "omit": 1, "strike again": 1}):
        case "omit" if stroke.step and len(strokes) > 2:
            del strokes[i]
        case "strike again" if stroke.length >= 2 * beat:
            first = stroke.length // beat // 2 * beat
            again = stroke._replace(step=stroke.step + first, length=stroke.length - first)
            strokes[i : i + 1] = [stroke._replace(length=first), again]
        case _:
            strokes[i] = stroke._replace(tones=_revoice(rng, stroke.tones))
    return strokes


def _revoice(rng: Generator, tones: tuple[int, ...]) -> tuple[int, ...]:
    """Return the tones without one of them, or a single tone's neighbour in the same hand."""
    if len(tones) > 1:
        left_out = pick(rng, tones)
        return tuple(tone for tone in tones if tone != left_out)
    [tone] = tones
    hand = range(4) if tone >= 0 else range(TENTH, 0)
    return (pick(rng, [other for other in (tone - 1, tone + 1) if other in hand]),)


def play(
    textures: Sequence[Texture],
    bars: Chords,
    metre: Metre,
    *,
    ends: bool,
) -> StepNotes:
    """Return the notes of an accompaniment, with the accent in place of the velocity.

    Each voicing moves as little as possible from the previous one. Notes end with their chord. The
    last bar is sustained.

    Args:
        textures: the texture of each bar.
        bars: the chords of each bar, one or two.
        ends: whether the piece ends here; the last bar is then one chord.
    """
    notes: StepNotes = []
    hands = _Hands()
    end, split = metre.bar, metre.split
    for bar, (texture, chords) in enumerate(zip(textures, bars, strict=True)):
        if bar == len(bars) - 1 and ends:
            texture = [Stroke(0, end, (BASS, OCTAVE), 2), Stroke(0, end, CHORD)]
        elif bar == len(bars) - 1 > 1:
            texture = _sustained(texture, metre)
        if len(chords) == 2:
            texture = _with_both_chords(texture, metre)
        for stroke in sorted(texture):
            is_before_split = stroke.step < split and len(chords) == 2
            until = (split if is_before_split else end) - stroke.step
            onset, length = bar * end + stroke.step, min(stroke.length, until)
            pitches = hands.pitches(chords[0 if stroke.step < split else -1], stroke.tones)
            notes += [(onset, length, pitch, stroke.accent) for pitch in pitches]
    return notes


def _sustained(texture: Texture, metre: Metre) -> Texture:
    """Return the texture of a bar whose second half has no new strokes."""
    end, split = metre.bar, metre.split
    return [
        stroke._replace(length=end - stroke.step)
        if stroke.step + stroke.length >= split
        else stroke
        for stroke in texture
        if stroke.step < split
    ]


def _with_both_chords(texture: Texture, metre: Metre) -> Texture:
    """Return the texture of a bar with two chords, in which both hands also play the second."""
    end, split = metre.bar, metre.split
    if not any(s.step == split and min(s.tones) < 0 for s in texture):
        texture = [*texture, Stroke(split, end - split, (BASS,), 1)]
    if not any(s.step >= split and max(s.tones) >= 0 for s in texture):
        texture = [*texture, Stroke(split, end - split, CHORD)]
    return texture


class _Hands:
    """The pitches of both hands over a sequence of chords."""

    def __init__(self) -> None:
        self.chord: Chord | None = None
        self.bass = _BASS_CENTRE
        self.voicing: tuple[int, ...] = ()
        self.has_bass = False  # whether the bass of this chord has been played

    def pitches(self, chord: Chord, tones: tuple[int, ...]) -> list[int]:
        """Return the MIDI pitches of tones of a chord; the left hand begins it with its bass.

        The bass and the voicing of a new chord are those nearest to the previous ones.
        """
        if chord != self.chord:
            self.chord, self.has_bass = chord, False
            basses = ladder((chord.bass,), *_BASS_RANGE)
            self.bass = nearest(basses, (self.bass + _BASS_CENTRE) / 2)
            self.voicing = close_voicing(chord, self.voicing, *_CHORD_RANGE, 3)
        if not self.has_bass and min(tones) < 0:
            self.has_bass = True
            if BASS not in tones:
                tones = (BASS, *(tone for tone in tones if tone >= 0))
        return [self._pitch(chord, tone) for tone in tones]

    def _pitch(self, chord: Chord, tone: int) -> int:
        """Return the MIDI pitch of a tone of either hand."""
        if tone >= 0:
            octave, index = divmod(tone, len(self.voicing))
            return self.voicing[index] + 12 * octave
        if tone == BASS:
            return self.bass
        if tone == OCTAVE:
            return self.bass + 12
        # The chord tone nearest to the interval, as the interval is not in every inverted chord.
        tones = ladder(chord.pitch_classes, self.bass + 1, self.bass + 24)
        return nearest(tones, self.bass + (7 if tone == FIFTH else 16))
