"""Composition of grooves. A style is drawn from a family, and a song from a style."""

import numpy as np
from numpy.random import Generator

from musicgen.composer.draw import StepNotes, chance, changes, generator, notes_of_part, pick
from musicgen.composer.families import BAR, DRUM_KEYS, FAMILIES, Family, Hit, parse
from musicgen.composer.harmony import Chord, close_voicing, ladder, nearest, spell
from musicgen.midi import TEMPO, TICKS_PER_BEAT, Marker, Score, TimeSignature, Track

STEP = TICKS_PER_BEAT // 12
"""Ticks in a step, a twelfth of a beat."""

_HALF = BAR // 2
_PHRASE = 8  # bars in a phrase
PARTS = ("Bass", "Drums", "Piano", "Guitar", "Strings")
_PITCHED = ("Bass", "Piano", "Guitar", "Strings")
_RANGES = {"Bass": (28, 47), "Piano": (54, 72), "Guitar": (50, 69), "Strings": (58, 78)}
_LEVELS = {"Bass": 88, "Piano": 72, "Guitar": 70, "Strings": 62}
_ACCENTS = {"X": 108, "x": 86, "o": 48}
_FORMS = ("AABA", "AABB", "ABAB", "ABA", "AAB", "AABa", "ABAb")  # lower case: half a phrase

Arrangement = dict[str, tuple[list[Hit], list[Hit]]]
"""The strokes of odd and even bars, by drum or part."""
PhraseBar = tuple[str, int, int]
"""Letter of the phrase, number of the bar in it, length of the phrase in bars."""


def compose_groove(seed: int, family: str, style: int, song: int) -> Score:
    """Return a song of 24–32 bars for Bass, Drums, Piano, Guitar and Strings.

    Onsets and lengths are multiples of a twelfth of a beat. Songs of a style share patterns, fills
    and instruments, and differ in key, tempo, progression and form.

    Args:
        family: a key of `FAMILIES`.
        seed, style, song: at least 0. The same numbers give the same music.
    """
    return compose_from_family(FAMILIES[family], seed, family, style, song)


def compose_from_family(family: Family, seed: int, name: str, style: int, song: int) -> Score:
    """Return a song as `compose_groove` does, from the patterns of any family.

    Args:
        name: name of the family, a part of the random key.
    """
    rng = generator("style", seed, name, style)
    triplets = any(len(pattern) == 12 for pattern in family.bass.split())
    arrangements = _draw_arrangements(rng, family, triplets)
    slow, fast = family.tempo
    tempo = slow + int(rng.integers(fast - slow + 1))
    fills = [_draw_fill(rng, triplets) for _ in range(3)]
    of_style = [pick(rng, family.progressions) for _ in range(3)]
    gate = pick(rng, (0.5, 0.75, 1.0))  # factor on the length of short accompaniment chords

    rng = generator("song", seed, name, style, song)
    tonic = int(rng.integers(12))
    bpm = round(tempo * (0.95 + 0.1 * rng.random()))
    progressions = {letter: pick(rng, of_style).split() for letter in "AB"}
    form = pick(rng, _FORMS)
    chords: list[Chord] = []
    phrase_bars: list[PhraseBar] = []
    for letter in form:
        num_bars = _PHRASE if letter.isupper() else _PHRASE // 2
        numerals = progressions[letter.upper()]
        chords += [spell(numerals[bar % len(numerals)], tonic) for bar in range(num_bars)]
        phrase_bars += [(letter.upper(), bar, num_bars) for bar in range(num_bars)]
    chords[-1] = spell(progressions[form[0].upper()][0], tonic)

    programs = dict(zip(_PITCHED, family.programs, strict=True))
    tracks = []
    for part in PARTS:
        if part == "Drums":
            step_notes = _drum_part(rng, arrangements, fills, phrase_bars)
        else:
            step_notes = _pitched_part(part, arrangements, gate, chords, phrase_bars)
        notes = notes_of_part(step_notes, STEP)
        tracks.append(Track(part, programs.get(part, 0), part == "Drums", notes))
    return Score(
        TICKS_PER_BEAT,
        tracks,
        np.array([(0, bpm)], TEMPO),
        [TimeSignature(0, 4, 4)],
        [Marker(bar * BAR * STEP, chord.marker) for bar, chord in changes([*enumerate(chords)])],
    )


def _draw_arrangements(rng: Generator, family: Family, triplets: bool) -> dict[str, Arrangement]:
    """Return random arrangements of the phrases A and B."""
    pools = family.drums | {part: getattr(family, part.lower()) for part in _PITCHED}
    main = {name: _two_bars(rng, pool, triplets) for name, pool in pools.items()}
    # Phrase B has the same kick and snare as phrase A, and some other patterns.
    other = dict(main)
    for name, pool in pools.items():
        same = name in ("kick", "snare") or chance(rng, 0.35 if name in PARTS else 0.5)
        if not same:
            other[name] = _two_bars(rng, pool, triplets)
    return {"A": main, "B": other}


def _two_bars(rng: Generator, pool: str, triplets: bool) -> tuple[list[Hit], list[Hit]]:
    """Return a random pattern for the odd bars, and a variation of it for the even bars."""
    first = _mutate(rng, parse(pick(rng, pool.split())), triplets, 0.6)
    return first, _mutate(rng, first, triplets, 0.5)


def _mutate(rng: Generator, pattern: list[Hit], triplets: bool, probability: float) -> list[Hit]:
    """Return a pattern with random changes: an off-beat stroke less, a softer one more."""
    hits = list(pattern)
    weak = [i for i, (onset, _, _) in enumerate(hits) if onset % 12]
    if len(hits) > 2 and chance(rng, probability / 2) and weak:
        del hits[pick(rng, weak)]
    if hits and chance(rng, probability):
        cell = 4 if triplets else 3
        taken = {step for onset, length, _ in hits for step in range(onset, onset + length)}
        free = [step for step in range(0, BAR, cell) if step not in taken]
        if free:
            step = pick(rng, free)
            _, _, nearest_symbol = min(hits, key=lambda hit: (abs(hit[0] - step), hit[0]))
            softer = {"X": "x", "x": "o"}.get(nearest_symbol, nearest_symbol)
            hits.append((step, cell, softer))
    return sorted(hits)


def _draw_fill(rng: Generator, triplets: bool) -> StepNotes:
    """Return a random drum fill for half a bar, from the snare down to the low tom."""
    cell = 4 if triplets else 3
    kit = ("snare", "tom_high", "tom_mid", "tom_low")
    density = pick(rng, (0.5, 0.7, 0.95))
    steps = [step for step in range(_HALF, BAR, cell) if step % 12 == 0 or chance(rng, density)]
    drum = 0
    notes: StepNotes = []
    for i, step in enumerate(steps):
        # Move down at an even pace, sometimes staying on a drum.
        drum = max(drum, len(kit) * i // len(steps) - pick(rng, (0, 0, 1)))
        notes.append((step, cell, DRUM_KEYS[kit[drum]], 76 + 28 * i // len(steps)))
    return notes


def _drum_part(
    rng: Generator,
    arrangements: dict[str, Arrangement],
    fills: list[StepNotes],
    phrase_bars: list[PhraseBar],
) -> StepNotes:
    """Return the drums, with a fill before each new phrase and a crash at its beginning."""
    notes: StepNotes = []
    for bar, (letter, number, num_bars) in enumerate(phrase_bars):
        start = bar * BAR
        last, halfway = number == num_bars - 1, number % 4 == 3
        fill = last or (halfway and chance(rng, 0.4))
        for name, bars in arrangements[letter].items():
            if name in PARTS:
                continue
            cut = BAR if not fill or name in ("kick", "maracas", "claves") else _HALF
            notes += [
                (start + onset, length, DRUM_KEYS[name], _ACCENTS[symbol])
                for onset, length, symbol in bars[number % 2]
                if onset < cut
            ]
        if fill:
            notes += [(start + at, length, key, v) for at, length, key, v in pick(rng, fills)]
        if number == 0:
            notes.append((start, 12, DRUM_KEYS["crash"], 100 if bar else 84))
    return notes


def _pitched_part(
    part: str,
    arrangements: dict[str, Arrangement],
    gate: float,
    chords: list[Chord],
    phrase_bars: list[PhraseBar],
) -> StepNotes:
    """Return the notes of a part over one chord per bar."""
    low, high = _RANGES[part]
    notes: StepNotes = []
    voicing: tuple[int, ...] = ()
    root = (low + high) // 2
    for bar, (chord, (letter, number, _)) in enumerate(zip(chords, phrase_bars, strict=True)):
        following = chords[bar + 1] if bar + 1 < len(chords) else chord
        root = nearest(ladder((chord.bass,), low, low + 12), (root + low + 6) / 2)
        size = 4 if len(chord.pitch_classes) == 4 else 3
        voicing = close_voicing(chord, voicing, low, high, size)
        hits = arrangements[letter][part][number % 2]
        if bar == len(chords) - 1:  # the piece ends with one long stroke
            hits = [(0, BAR, "1" if part == "Bass" else "c")] if hits else []
        for onset, length, symbol in hits:
            if part == "Bass":
                pitches: tuple[int, ...] = (_bass_pitch(symbol, chord, following, root),)
            elif symbol == "c":
                pitches = voicing
            else:
                octave, degree = divmod(int(symbol), len(voicing))
                pitches = (voicing[degree] + 12 * octave,)
            if part != "Bass" and length <= 6:
                length = max(1, round(length * gate))
            accent = 8 if onset % 24 == 0 else 0 if onset % 12 == 0 else -6
            velocity = _LEVELS[part] + accent
            notes += [(bar * BAR + onset, length, pitch, velocity) for pitch in pitches]
    return notes


def _bass_pitch(symbol: str, chord: Chord, following: Chord, root: int) -> int:
    """Return the MIDI pitch of a symbol of the bass.

    Args:
        following: the chord of the next bar.
        root: MIDI pitch of the bass note of `chord`.
    """
    tones = chord.pitch_classes
    if symbol == "a":
        target = nearest(ladder((following.bass,), root - 7, root + 7), root)
        # Approach from below if the line rises, else from above.
        return target - 1 if target > root else target + 2
    if symbol == "1":
        return root
    if symbol == "8":
        return root + 12
    degree = {"3": 1, "5": 2, "7": 3}[symbol]
    if degree < len(tones):
        return root + (tones[degree] - chord.bass) % 12
    return root + 9  # the sixth, as triads have no seventh
