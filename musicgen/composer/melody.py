"""Chord progressions of pop songs, and melodies over them.

Progressions are four-chord loops or random functional ones, with cadences. Melodies consist of
two-bar motifs, which are repeated, varied and fitted to the harmony.
"""

from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from musicgen.composer.draw import chance, pick
from musicgen.composer.harmony import Chord, ladder, lead_basses, nearest, scale_over, spell
from musicgen.midi.key import Key

Bar = tuple[str, ...]
"""The Roman numerals of a bar: one, or two of half a bar each."""
Chords = list[tuple[Chord, ...]]
"""The chords of each bar, one or two."""
Note = tuple[int, int, int]
"""A note of a part: onset and length in steps, MIDI pitch."""

_LOOPS = {
    "major": (
        "I V vi IV", "vi IV I V", "I vi IV V", "I IV vi V", "IV V iii vi", "I iii IV V",
        "I vi ii V", "IV I V vi", "I bVII IV I", "ii V I vi", "I V ii IV", "IV iii ii V",
        "I IV ii V", "vi V IV V", "I iii vi IV", "I ii IV V",
    ),
    "minor": (
        "i bVI bIII bVII", "i bVII bVI bVII", "i iv bVII bIII", "i bVI iv V", "i iv V i",
        "i bIII bVII iv", "bVI bVII i i", "i v bVI bVII", "iv bVII bIII bVI", "i bVII bVI V",
        "i iv i V", "bVI iv i V",
    ),
}  # fmt: skip

# Weights of the next chord after each chord. No chord follows itself.
_MOVES: dict[str, dict[str, dict[str, float]]] = {
    "major": {
        "I": {"IV": 4, "vi": 4, "V": 3, "ii": 2, "iii": 2, "bVII": 0.5},
        "ii": {"V": 6, "IV": 1, "vi": 1, "viio": 0.6},
        "iii": {"vi": 4, "IV": 4, "ii": 1},
        "IV": {"V": 4, "I": 3, "ii": 2, "iv": 1, "iii": 1},
        "iv": {"I": 4, "V": 2, "bVII": 1},
        "V": {"I": 4, "vi": 4, "IV": 2, "iii": 1},
        "vi": {"IV": 4, "ii": 3, "V": 2, "iii": 2},
        "viio": {"I": 3, "iii": 1, "vi": 1},
        "bVII": {"IV": 3, "I": 2, "bVI": 0.6},
        "bVI": {"bVII": 3, "V": 2, "iv": 1},
    },
    "minor": {
        "i": {"iv": 4, "bVI": 4, "bVII": 3, "bIII": 2, "v": 1, "iih7": 1},
        "iih7": {"V": 5, "v": 1},
        "bIII": {"bVI": 3, "bVII": 3, "iv": 2},
        "iv": {"V": 3, "bVII": 3, "i": 2, "iih7": 1},
        "v": {"bVI": 3, "iv": 2, "i": 1},
        "V": {"i": 5, "bVI": 2, "iv": 0.5},
        "bVI": {"bVII": 4, "iv": 2, "bIII": 2, "iih7": 1, "V": 1},
        "bVII": {"bIII": 3, "i": 3, "bVI": 2},
    },
}

_BORROWED = {"major": {"iv", "bVI", "bVII"}, "minor": {"V"}}
"""Chords with notes outside of the key. They are never passing chords."""

_CADENCES: dict[str, dict[str, dict[str, float]]] = {
    "major": {
        "full": {"V|I": 4, "ii V|I": 3, "IV V|I": 3, "IV iv|I": 1.5, "bVI bVII|I": 1},
        "half": {"ii|V": 2, "IV|V": 3, "vi V7/V|V": 1.5, "I|Vsus4 V": 2, "ii V7/V|Vsus4 V": 1},
    },
    "minor": {
        "full": {"V|i": 4, "iv V|i": 3, "iih7 V|i": 2, "bVI bVII|i": 2, "iv V|I": 0.4},
        "half": {"iv|V": 3, "bVI|V": 3, "i|Vsus4 V": 2, "bVI iv|Vsus4 V": 1},
    },
}
"""Options for the last two bars, by mode and cadence."""

_SEVENTHS = {
    "I": "IM7", "ii": "ii7", "iii": "iii7", "IV": "IVM7", "V": "V7", "vi": "vi7", "viio": "viih7",
    "i": "i7", "iv": "iv7", "v": "v7", "bIII": "bIIIM7", "bVI": "bVIM7", "bVII": "bVII7",
}  # fmt: skip

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
_LEAPS = {-4: 0.4, -3: 0.8, -2: 2, -1: 5, 0: 2.5, 1: 5, 2: 2, 3: 0.8, 4: 0.6, 5: 0.2}

# Structures of sections by their length in bars. A letter is a motif of two bars, a prime a varied
# repetition.
_PHRASES = {
    2: ("a",),
    4: ("ab", "aa'"),
    8: ("abac", "aa'bc", "aba'c", "abcb'", "aa'a'b", "aab'c"),
    16: ("abacaba'd", "aa'bcaa'bd", "abcdaba'e", "abacdd'bc"),
}


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

    def chord_at(self, bars: Chords, step: int) -> Chord:
        """Return the chord at a step from the beginning of some bars."""
        bar, step = divmod(step, self.bar)
        return bars[bar][0 if step < self.split else -1]


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


Motif = tuple[Tone, ...]


def draw_sevenths(rng: Generator) -> dict[str, str]:
    """Return the chords that have a seventh throughout a piece: triad -> seventh chord.

    Some pieces have no such chords, and others have mostly these.
    """
    share = pick(rng, (0.0, 0.15, 0.4, 0.8))
    return {
        triad: seventh_chord
        for triad, seventh_chord in _SEVENTHS.items()
        if chance(rng, max(share, 0.5) if triad == "V" else share)
    }


def draw_section(
    rng: Generator, mode: str, num_bars: int, cadence: str, *, walking: float
) -> list[Bar]:
    """Return the random numerals of a section.

    Args:
        mode: `major` or `minor`.
        num_bars: length; sections of eight bars or more consist of phrases of four.
        cadence: the ending: `full`, `half` or `open` (no cadence).
        walking: probability of a functional progression instead of a loop.
    """
    if chance(rng, walking):
        opening = _walk(rng, mode, min(num_bars, 4))
        answer = opening[:2] + _walk(rng, mode, 2, after=opening[1][0])
        phrases = [opening, answer if chance(rng, 0.6) else _walk(rng, mode, 4)]
    else:
        loop: list[Bar] = [(numeral,) for numeral in pick(rng, _LOOPS[mode]).split()]
        phrases = [loop, loop]
    bars = [bar for i in range(-(-num_bars // 4)) for bar in phrases[i % 2]][:num_bars]
    if num_bars >= 8 and chance(rng, 0.4):
        half = num_bars // 2
        bars = close(rng, mode, "half", bars[:half]) + bars[half:]
    if cadence in _CADENCES[mode]:
        bars = close(rng, mode, cadence, bars)
    return _decorate(rng, mode, bars)


def close(rng: Generator, mode: str, cadence: str, bars: list[Bar]) -> list[Bar]:
    """Return the bars, the last two replaced by a full or half cadence."""
    ending = pick(rng, _CADENCES[mode][cadence]).split("|")
    return [*bars[:-2], *(tuple(bar.split()) for bar in ending)]


def realise(bars: list[Bar], tonic: int, sevenths: dict[str, str]) -> Chords:
    """Return the chords of each bar; all but the first and last may be inverted for the bass line.

    Args:
        tonic: pitch class.
        sevenths: what `draw_sevenths` returned.
    """
    chords = [spell(sevenths.get(numeral, numeral), tonic) for bar in bars for numeral in bar]
    inverted = iter(lead_basses(chords, keep={0, len(chords) - 1}))
    return [tuple(next(inverted) for _ in bar) for bar in bars]


def _walk(rng: Generator, mode: str, num_bars: int, after: str = "") -> list[Bar]:
    """Return a random functional progression; `after` is the chord before it, if there is one."""
    moves = _MOVES[mode]
    home = "I" if mode == "major" else "i"
    current = pick(rng, moves[after]) if after else pick(rng, {home: 3, pick(rng, moves[home]): 1})
    bars: list[Bar] = []
    while len(bars) < num_bars:
        following = pick(rng, moves[current])
        if chance(rng, 0.2):
            bars.append((current, following))
            following = pick(rng, moves[following])
        else:
            bars.append((current,))
        current = following
    return bars


def _decorate(rng: Generator, mode: str, bars: list[Bar]) -> list[Bar]:
    """Return the bars; some with one chord get a second: a passing chord, suspension and so on."""
    moves = {
        chord: [after for after in following if after not in _BORROWED[mode]]
        for chord, following in _MOVES[mode].items()
    }
    out = []
    for bar, following in zip(bars, [*bars[1:], ("",)], strict=True):
        chord, target = bar[0], following[0]
        options: dict[Bar, float] = {bar: 1.0}
        if len(bar) == 1:
            if target in ("ii", "iii", "IV", "V", "vi", "iv", "bIII", "bVI") and chord != target:
                options |= {(chord, f"V7/{target}"): 0.06, (chord, f"viio7/{target}"): 0.01}
            passing = [via for via in moves.get(chord, ()) if target in moves.get(via, ())]
            options |= {(chord, via): 0.35 / len(passing) for via in passing}
            if chord == "IV" and target == "I":
                options[chord, "iv"] = 0.15
            if chord == "V":
                options["Vsus4", "V"] = 0.3
            if chord in ("I", "IV") and target != chord:
                options[f"{chord}sus2", chord] = 0.06
            if chord == "I" and target in ("vi", "IV"):
                options["I", "I+"] = 0.08
        out.append(pick(rng, options))
    return out


class MotifWriter:
    """Draws the motifs of a piece, which share a few one-bar rhythms.

    Args:
        feel: a key of `_CELLS`.
        leaning: probability that a note is an appoggiatura.
    """

    def __init__(self, rng: Generator, feel: str, metre: Metre, leaning: float) -> None:
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
            move = pick(rng, _LEAPS)
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
        """Return the random motifs of a section, one per two bars."""
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
    motifs: list[Motif],
    bars: Chords,
    metre: Metre,
    key: Key,
    *,
    middle: int,
    low: int,
    high: int,
) -> list[Note]:
    """Return the notes of motifs over a harmony.

    Strong and long notes are chord tones, except appoggiaturas. Other notes belong to the scale
    over the chord. The last note of the section is a long root or third.

    Args:
        motifs: one per two bars.
        bars: the chords of each bar.
        middle: MIDI pitch from which the first note of each motif moves.
        low, high: range in MIDI pitches.
    """
    notes: list[Note] = []
    for unit, motif in enumerate(motifs):
        pitch = middle
        for i, tone in enumerate(motif):
            onset = 2 * metre.bar * unit + tone.onset
            chord = metre.chord_at(bars, onset)
            rungs = ladder(scale_over(chord, key), low, high)
            rung = rungs.index(nearest(rungs, pitch)) + tone.move
            # Reflect at the ends of the range.
            rung = abs(rung) if rung < len(rungs) else 2 * len(rungs) - 2 - rung
            target = rungs[rung]
            strong = i == 0 or tone.onset % metre.bar in (0, metre.split) or tone.length >= 6
            if strong and not tone.leans:
                tones = ladder(chord.pitch_classes, low, high)
                target = nearest(tones, target + 0.25 * np.sign(tone.move))
            notes.append((onset, tone.length, target))
            pitch = target
    onset, _, pitch = notes[-1]
    home = ladder(bars[-1][-1].pitch_classes[:2], low, high)
    notes[-1] = onset, min(len(bars) * metre.bar - onset, 12), nearest(home, pitch)
    return notes
