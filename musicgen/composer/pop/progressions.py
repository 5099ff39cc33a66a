"""Chord progressions: four-chord loops or random functional progressions, with cadences."""

import numpy as np

from musicgen.composer.draw import chance, pick
from musicgen.composer.harmony import Chord, lead_basses, spell

Bar = tuple[str, ...]
"""The Roman numerals of a bar: one, or two of half a bar each."""

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


def draw_sevenths(rng: np.random.Generator) -> dict[str, str]:
    """Return the chords that have a seventh throughout a piece: triad -> seventh chord.

    They are none in some pieces, and most in others.
    """
    share = pick(rng, (0.0, 0.15, 0.4, 0.8))
    return {
        triad: seventh_chord
        for triad, seventh_chord in _SEVENTHS.items()
        if chance(rng, max(share, 0.5) if triad == "V" else share)
    }


def draw_section(
    rng: np.random.Generator, mode: str, num_bars: int, cadence: str, *, walking: float
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


def close(rng: np.random.Generator, mode: str, cadence: str, bars: list[Bar]) -> list[Bar]:
    """Return the bars, the last two replaced by a full or half cadence."""
    ending = pick(rng, _CADENCES[mode][cadence]).split("|")
    return [*bars[:-2], *(tuple(bar.split()) for bar in ending)]


def realise(bars: list[Bar], tonic: int, sevenths: dict[str, str]) -> list[tuple[Chord, ...]]:
    """Return the chords of each bar; all but the first and last may be inverted for the bass line.

    Args:
        tonic: pitch class.
        sevenths: what `draw_sevenths` returned.
    """
    chords = [spell(sevenths.get(numeral, numeral), tonic) for bar in bars for numeral in bar]
    inverted = iter(lead_basses(chords, keep={0, len(chords) - 1}))
    return [tuple(next(inverted) for _ in bar) for bar in bars]


def _walk(rng: np.random.Generator, mode: str, num_bars: int, after: str = "") -> list[Bar]:
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


def _decorate(rng: np.random.Generator, mode: str, bars: list[Bar]) -> list[Bar]:
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
