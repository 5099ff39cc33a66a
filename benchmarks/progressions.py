"""How well `chords=` is heard: chords recognised in continuations that were asked for some.

    python -m benchmarks.progressions [--root POP909]

`pop-piano-small` writes 16 bars after four of composed pieces that it never saw, without a prompt,
and after four of POP909's first songs, with a progression and, with the same seeds, without: in
the prompt's key, for minor its relative major, I vi IV V and ii7 V7 Imaj7 vi; in C without a
prompt. `with_chords` and `without` are shares of the bars whose longest recognised chord has the
asked root and quality, of those that have the root, and of the notes that are tones of the chord
asked for; `own` is the share of the bars whose longest chord by the model's tokens is recognised.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import musicgen
from benchmarks import measure
from musicgen.composer import compose_corpus
from musicgen.generation.continuation import Continuation
from musicgen.metrics.key import find_scale
from musicgen.midi import Marker, Score, pitched_notes, read
from musicgen.tokenization.chords.progression import parse_progression
from musicgen.tokenization.chords.recognition import recognise_chords
from musicgen.tokenization.chords.symbols import (
    INTERVALS,
    NO_CHORD,
    QUALITIES,
    ROOTS,
    chord_index,
)

MODEL = "pop-piano-small"
HELD_OUT_SEED = 1000  # of composed pieces; the training set's is 0
BARS, BAR = 16, 4 * 480
PROGRESSIONS = {
    "I vi IV V": ((0, ""), (9, "m"), (5, ""), (7, "")),
    "ii7 V7 Imaj7 vi": ((2, "m7"), (7, "7"), (0, "maj7"), (9, "m")),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--root", type=Path, help="POP909's folder, for prompts of its songs")
    parser.add_argument("--device", default="cpu", choices=("cpu",))
    args = parser.parse_args()
    measure.write_results("progressions", {"rows": list(rows(args))}, args)


def rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    with TemporaryDirectory() as folder:
        paths = compose_corpus(Path(folder), kind="pop", num_pieces=20, seed=HELD_OUT_SEED)
        prompts: dict[str, list[Score | None]] = {"composed": list(map(read, paths))}
    prompts["none"] = [None] * 20
    if args.root is not None:
        songs = sorted(args.root.glob("*/*.mid"))[:5]
        prompts["POP909"] = [replace(read(song), time_signatures=[]) for song in songs]
    model = musicgen.load(MODEL)
    for source, music in prompts.items():
        free = [
            model.generate(each, prompt_bars=each and 4, bars=BARS, seed=seed)[0]
            for seed, each in enumerate(music)
        ]
        yield {"prompts": source, "asked": None, "own": mean(map(own_share, free))}
        for name, degrees in PROGRESSIONS.items():
            following, measured = [], dict[str, list[list[float]]](with_chords=[], without=[])
            for seed, each in enumerate(music):
                asked = symbols(free[seed], degrees)
                (piece,) = model.generate(
                    each, prompt_bars=each and 4, bars=BARS, seed=seed, chords=asked
                )
                following.append(piece)
                chords = [bar[0] for bar in parse_progression(asked)] * (BARS // len(degrees))
                measured["with_chords"].append(figures(piece.new_score, chords))
                measured["without"].append(figures(free[seed].new_score, chords))
            found = {key: np.mean(values, axis=0).tolist() for key, values in measured.items()}
            own = mean(map(own_share, following))
            yield {"prompts": source, "asked": name, "own": own, **found}
            print(source, name, own, found, flush=True)


def symbols(piece: Continuation, degrees: Sequence[tuple[int, str]]) -> str:
    """Return chords in the major key, or its relative, of a prompt; in C without one."""
    tonic = find_scale(piece.prompt.score) if piece.prompt.score.num_notes else 0
    return " ".join(ROOTS[(tonic + degree) % 12] + quality for degree, quality in degrees)


def figures(score: Score, asked: Sequence[int]) -> list[float]:
    """Return the shares of bars with a chord, of bars with its root, and of notes in it."""
    found = longest_in_bars(recognise_chords(replace(score, markers=[])))
    same = np.mean([a == b for a, b in zip(found, asked, strict=True)])
    roots = [a != NO_CHORD and a // 11 == b // 11 for a, b in zip(found, asked, strict=True)]
    notes = pitched_notes(score)
    bars = np.minimum(notes["onset"] // BAR, BARS - 1)
    tones = [[(chord // 11 + i) % 12 for i in INTERVALS[QUALITIES[chord % 11]]] for chord in asked]
    inside = [p % 12 in tones[bar] for p, bar in zip(notes["pitch"], bars, strict=True)]
    return [float(same), float(np.mean(roots)), float(np.mean(inside))]


def own_share(piece: Continuation) -> float:
    """Return the share of bars whose recognised chord is the one that the tokens name."""
    score = piece.new_score
    written = longest_in_bars(score.markers)
    found = longest_in_bars(recognise_chords(replace(score, markers=[])))
    return float(np.mean([a == b for a, b in zip(found, written, strict=True)]))


def longest_in_bars(markers: Sequence[Marker]) -> list[int]:
    """Return the chord that is in force for most of each bar; of equals the first."""
    steps = np.zeros((BARS, NO_CHORD + 1))
    ticks = [*(marker.tick for marker in markers), BARS * BAR]
    for marker, end in zip(markers, ticks[1:], strict=True):
        index = chord_index(marker.text)
        for bar in range(BARS):
            shared = min(end, (bar + 1) * BAR) - max(marker.tick, bar * BAR)
            if index is not None and shared > 0:
                steps[bar, index] += shared
    return steps.argmax(axis=1).tolist()


def mean(values: Any) -> float:
    return float(np.mean(list(values)))


if __name__ == "__main__":
    main()
