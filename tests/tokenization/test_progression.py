"""Progressions: symbols against hand-written tones, schedules against plain loops, and the grammar."""

import numpy as np
import pytest
import torch

from musicgen.errors import UserError
from musicgen.generation.constraints import ConstrainedGrammar, EndBy
from musicgen.midi import TEMPO, Score, TimeSignature, Track, notes_from
from musicgen.tokenization import REMI, TIME_SIGNATURES
from musicgen.tokenization.bar_constraints import REMIChords
from musicgen.tokenization.bar_headers import FixedTempo, FixedTimeSignature
from musicgen.tokenization.chords import CHORDS, parse_chord, parse_progression, schedule
from tests.tokenization.conftest import random_walk

SPELLINGS = {
    "M": "C CM Cmaj C6 C69 C6/9 Cadd9 C(add9) C5 C2 C/E C6/E",
    "m": "Cm Cmin C- Cm6 Cm(maj7) CmM7 Cmadd9 Cm/Eb Cm6/9",
    "7": "C7 C9 C13 C7b9 C7#9 C7(b9) C7alt C7b5 Caug7 C+7 C7/Bb C9#11",
    "M7": "Cmaj7 CM7 CMaj7 Cma7 CΔ CΔ7 C^7 Cmaj9 Cmaj7#11 C_M7",
    "m7": "Cm7 Cmin7 C-7 Cmi7 Cm9 Cm11 Cm7add11 C_m7_G",
    "/o7": "Cm7b5 Cø Cø7 C-7b5 Cm7(b5) Cm7-5 Cmin7♭5",
    "o": "Cdim C° Co Cmb5",
    "o7": "Cdim7 C°7 Co7",
    "+": "Caug C+ C(#5) C+5",
    "sus2": "Csus2 C9sus2",
    "sus4": "Csus Csus4 C7sus4 C9sus C4 C7sus",
}


@pytest.mark.parametrize(
    ("symbol", "quality"),
    [(symbol, quality) for quality, text in SPELLINGS.items() for symbol in text.split()],
)
def test_spellings_of_a_quality(symbol, quality):
    assert CHORDS[parse_chord(symbol)] == f"C_{quality}"


def test_roots():
    symbols = "C C# Db D Eb E♭ F F♯m Gb G Ab Bb Cb B#m7 N.C."
    names = [CHORDS[parse_chord(symbol)] for symbol in symbols.split()]
    expected = "C_M C#_M C#_M D_M D#_M D#_M F_M F#_m F#_M G_M G#_M A#_M B_M C_m7 N_N"
    assert " ".join(names) == expected


@pytest.mark.parametrize(
    ("text", "bars"),
    [
        ("C Am F G", ["C", "Am", "F", "G"]),
        (" C, Am,F ,G ", ["C", "Am", "F", "G"]),
        ("C Am/E | G", ["C Am/E", "G"]),
        ("| C Am | F | % | G / G7 C ||", ["C Am", "F", "F", "G G G7 C"]),
        ("C|%|%", ["C", "C", "C"]),
        ("C F | % | / G", ["C F", "C F", "F G"]),
        ("C % / F#m", ["C", "C", "C", "F#m"]),
    ],
)
def test_progressions(text, bars):
    assert parse_progression(text) == [[parse_chord(s) for s in bar.split()] for bar in bars]


@pytest.mark.parametrize(
    ("text", "symbol"),
    [
        ("C H7", "H7"), ("% C", "%"), ("/ C", "/"), ("c", "c"), ("C-Am", "C-Am"), ("C/x", "C/x"),
        ("Cmaj7sus9", "Cmaj7sus9"), ("| |", "| |"), ("", ""),
    ],
)  # fmt: skip
def test_what_is_no_progression_is_named(text, symbol):
    with pytest.raises(UserError) as caught:
        parse_progression(text)
    assert str(caught.value).startswith(f"chords={symbol}: expected chords such as C, Bb, F#m")


def test_chords_share_a_bar_evenly_and_begin_again():
    bars = [[3], [4, 5], [6, 7, 8, 7]]
    once = [[0, 3], [12, 4], [18, 5], [24, 6], [27, 7], [30, 8], [33, 7]]
    assert schedule(bars, range(0, 37, 12)).tolist() == once
    assert schedule(bars, range(0, 61, 12)).tolist() == [*once, [36, 3], [48, 4], [54, 5]]
    assert schedule(bars, [0, 12, 20]).tolist() == [[0, 3], [12, 4], [16, 5]]
    assert schedule([[3], [3, 3]], range(0, 97, 12)).tolist() == [[0, 3]], "only changes"
    assert schedule(bars, [0]).shape == (0, 2)


TINY = REMI(pitch_range=(60, 63), velocity_bins=(64, 64, 1), tempo_bins=(90, 93, 3), max_bars=6)
METRICAL = REMI(time_signatures=TIME_SIGNATURES, max_bars=40)


def beginning(tokenizer, metre):
    """A bar with a chord and notes. [L]"""
    note = notes_from([(0, 480, 60, 64), (480, 240, 62, 64)])
    tempos = np.array([(0, 90.0)], TEMPO)
    score = Score(480, [Track(notes=note)], tempos, [TimeSignature(0, *metre)])
    tokens = tokenizer.encode(score)
    chord = tokenizer.vocabulary.id("Chord_C_M")
    return torch.from_numpy(np.insert(tokenizer.until_end(tokens), 2, chord))


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize(
    ("tokenizer", "metre", "bar"), [(TINY, (4, 4), 16), (METRICAL, (6, 8), 12)]
)
def test_each_chord_comes_at_its_time_and_no_other(tokenizer, metre, bar, fixed, closes):
    """Random walks behind a bar: from its end on the chords are those of a progression."""
    rng = np.random.default_rng(bar + 2 * fixed + closes)
    prompt = beginning(tokenizer, metre)
    progressions, num_bars = [], 4
    for number in range(24):
        steps = np.sort(rng.choice(num_bars * bar, 1 + number % 7, replace=False))
        steps[0] = 0
        chords = rng.choice([3, 8, 14, 132], len(steps))  # 3 is in force at first
        progressions.append(np.stack([bar + steps, chords], axis=1))
    grammar = tokenizer.grammar()
    constraints = [REMIChords(grammar, progressions)]
    if fixed:
        constraints += [FixedTempo(grammar), FixedTimeSignature(grammar)]
    if closes:
        constraints.append(EndBy(grammar, np.full(len(progressions), (1 + num_bars) * bar)))
    grammar = ConstrainedGrammar(grammar, constraints)
    state = grammar.start([prompt.numpy()] * len(progressions))
    walked, _ = random_walk(tokenizer, len(progressions), 100, 0, state, grammar)
    num_chords = 0
    for row, progression in zip(walked, progressions, strict=True):
        tokens = np.concatenate([prompt, row[row != tokenizer.vocabulary.pad_id]])
        end = tokenizer.grammar().start(tokens[None]).bar_end
        assert np.array_equal(tokenizer.encode(tokenizer.decode(tokens)), tokens)
        is_chord = np.isin(tokens, tokenizer.families["Chord"])
        found = np.stack([tokenizer.times(tokens), tokens - tokenizer.families["Chord"].start])
        expected, before = [], 3
        for step, chord in progression.tolist():
            if chord != before:
                expected.append([step, chord])
            before = chord
        written = found[:, is_chord].T.tolist()[1:]
        assert written == expected[: len(written)]
        assert all(step >= end for step, _ in expected[len(written) :]), "none is passed"
        num_chords += len(written)
    assert num_chords > 30
