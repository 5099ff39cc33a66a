"""Measure how well continuations follow `chords=`, by chord recognition.

A model writes 16 bars after four bars of composed pieces that are not in its training set: once
with each progression and, with the same seed, once without chords. The prompts are transposed to
the scale of C. `chord` is the share of bars in which the requested chord is the longest of those
recognised in the notes, and `notes` the share of notes that are tones of the requested chord.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import musicgen
from musicgen.composer import compose_corpus
from musicgen.midi import Marker, Score, pitched_notes, read
from musicgen.midi.key import Key, in_key_share
from musicgen.tokenization.chord_recognition import recognise_chords
from musicgen.tokenization.chords import (
    INTERVALS,
    NO_CHORD,
    QUALITIES,
    ROOTS,
    chord_index,
    parse_progression,
    spelled,
)

HELD_OUT_SEED = 1000  # of composed pieces; the training set's is 0
BARS, BAR = 16, 4 * 480
PROGRESSIONS = ("C Am F G", "Dm7 G7 Cmaj7 Am")


def rows(name: str) -> Iterator[dict[str, Any]]:
    with TemporaryDirectory() as folder:
        paths = compose_corpus(Path(folder), kind="pop", num_pieces=20, seed=HELD_OUT_SEED)
        prompts = [in_c(path) for path in paths]
    model = musicgen.load(name)
    options: dict[str, Any] = {"prompt_bars": 4, "bars": BARS}
    free = [piece.new_on_grid for piece in model.generate(prompts, **options)]
    for progression in PROGRESSIONS:
        pieces = model.generate(prompts, chords=progression, **options)
        asked = np.resize([bar[0] for bar in parse_progression(progression)], BARS)
        row = {
            "chords": progression,
            "with_chords": shares([piece.new_on_grid for piece in pieces], asked),
            "without": shares(free, asked),
        }
        print(row, flush=True)
        yield row


def in_c(path: Path) -> Score:
    """Return a piece in 4/4, transposed by the smallest interval to the scale of C."""
    score = replace(read(path), time_signatures=[])
    root = max(range(12), key=lambda root: in_key_share(score, Key(root, True)))
    semitones = (6 - root) % 12 - 6
    for track in score.tracks:
        track.notes["pitch"] += 0 if track.is_drum else semitones
    moved = ROOTS[semitones:] + ROOTS[:semitones]
    markers = [m._replace(text=spelled(m.text, moved)) for m in score.markers]
    return replace(score, markers=markers)


def recognised(score: Score) -> list[Marker]:
    return recognise_chords(replace(score, markers=[]))


def shares(scores: Sequence[Score], asked: np.ndarray) -> dict[str, float]:
    """Return the shares of bars with the requested chord, and of notes that are its tones."""
    found = np.array([longest(recognised(score)) for score in scores])
    inside = []
    for score in scores:
        notes = pitched_notes(score)
        chord = asked[notes["onset"] // BAR]
        tones = [INTERVALS[QUALITIES[quality]] for quality in chord % len(QUALITIES)]
        steps = (notes["pitch"] - chord // len(QUALITIES)) % 12
        inside += [step in own for step, own in zip(steps, tones, strict=True)]
    return {"chord": float((found == asked).mean()), "notes": float(np.mean(inside))}


def longest(markers: Sequence[Marker]) -> np.ndarray:
    """Return the chord that lasts longest in each bar; of equally long ones the first."""
    ticks = np.zeros((BARS, NO_CHORD + 1))
    starts = BAR * np.arange(BARS)
    ends = [*(marker.tick for marker in markers[1:]), BARS * BAR]
    for marker, end in zip(markers, ends, strict=True):
        shared = np.minimum(end, starts + BAR) - np.maximum(marker.tick, starts)
        ticks[:, chord_index(marker.text)] += np.maximum(0, shared)
    return ticks.argmax(axis=1)
