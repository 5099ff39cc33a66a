"""Compare how continuations are played with how the original goes on.

    python -m benchmarks.performance --pop909 FOLDER --groove FOLDER --performances FOLDER

The prompt is eight bars of a piece, and the next eight bars are played in four ways: `original`,
the bars as they are; `halves`, the prompt's bars in their place; `taken over`, their notes on a
grid of sixteenths, played like the prompt (`Performance`); `flat`, these notes on the grid at the
prompt's median velocity. Each way is compared with the original:

- velocity: Wasserstein distance of the velocities; by beat: mean difference of the mean velocity at
  each beat of the bar;
- deviation: the same of onsets from the grid, in thousandths of a quarter; by sixteenth of the bar;
- articulation: Wasserstein distance of the played length over the length on the grid.

POP909's songs are on their annotated beats. Of other performances the beats are found.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import wasserstein_distance

from benchmarks import measure
from musicgen.data.corpora.base import evenly_spaced
from musicgen.errors import UserError
from musicgen.generation.performance import Performance
from musicgen.generation.source import on_beats
from musicgen.midi import NOTE, TICKS_PER_BEAT, Score, find_music, read

BARS = 8  # of the prompt, and behind it
BAR = 4  # quarters
PER_BEAT = 4  # steps of the grid
MIN_NOTES = 20
Played = NDArray[np.void]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pop909", type=Path, required=True)
    parser.add_argument("--groove", type=Path, required=True, help="the Groove MIDI Dataset")
    parser.add_argument("--performances", type=Path, help="performances of piano music")
    parser.add_argument("--pieces", type=int, default=100, help="of each corpus")
    args = parser.parse_args()
    corpora = {"pop909": songs(args.pop909), "groove": drummers(args.groove)}
    if args.performances:
        corpora["performances"] = performances(args.performances)
    content = {name: measured([*pieces], args.pieces) for name, pieces in corpora.items()}
    measure.write_results(__file__, content)


def songs(root: Path) -> Iterator[Score]:
    corpus = measure.corpus("pop909", root)
    for piece in evenly_spaced(corpus.pieces(), 110):
        try:
            yield corpus.read_piece(piece)
        except UserError:  # not in 4/4
            continue


def drummers(root: Path) -> Iterator[Score]:
    yield from map(read, sorted(root.rglob("*_beat_4-4.mid")))


def performances(root: Path) -> Iterator[Score]:
    for path in find_music(root):
        score = read(path)
        if score.num_notes:
            yield on_beats(score, None, "auto")[0]


def measured(scores: list[Score], count: int) -> dict[str, Any]:
    """Return the means over all places of some pieces at which sixteen bars follow."""
    long = [score for score in scores if len(score.bar_starts()) > 2 * BARS]
    rows: dict[str, list[dict[str, float]]] = {"halves": [], "taken over": [], "flat": []}
    pieces = evenly_spaced(long, count)
    for score in pieces:
        for first in range(0, len(score.bar_starts()) - 2 * BARS, 2 * BARS):
            ways = played_ways(score, first)
            if ways is None:
                continue
            for way, of_way in rows.items():
                of_way.append(differences(ways[way], ways["original"]))
    means = {
        way: {name: float(np.nanmean([row[name] for row in of_way])) for name in of_way[0]}
        for way, of_way in rows.items()
    }
    return {"pieces": len(pieces), "places": len(rows["flat"]), **means}


def played_ways(score: Score, first: int) -> dict[str, Played] | None:
    """Return the eight bars behind a prompt from bar `first` on, played in each of the four ways.

    None if there are hardly any notes, or other bars than those of 4/4.
    """
    lines = score.bar_starts()[first : first + 2 * BARS + 1]
    if (np.diff(lines) != BAR * score.ticks_per_beat).any():
        return None
    prompt, original = performed(score, lines[0]), performed(score, lines[BARS])
    if not (prompt and original and min(len(prompt.notes), len(original.notes)) >= MIN_NOTES):
        return None
    tracks = range(len(score.tracks))
    played = prompt.play(on_grid(score, original.notes), 0, tracks, seed=0)
    taken_over = performed(played, 0)
    assert taken_over is not None
    flat = original.notes.copy()
    flat["velocity"] = np.median(prompt.notes["velocity"])
    flat["deviation"], flat["articulation"] = 0, 1
    ways = {"original": original, "halves": prompt, "taken over": taken_over}
    return {name: way.notes for name, way in ways.items()} | {"flat": flat}


def performed(score: Score, first: int) -> Performance | None:
    """Return how the eight bars from a tick on are played; None if they are empty."""
    ticks = first + np.array([-(2**30), 2**30])
    steps = (ticks - first) * PER_BEAT / score.ticks_per_beat
    bars = np.arange(BARS + 1) * BAR * PER_BEAT
    roles = range(len(score.tracks))
    return Performance.of(score, score, roles, (ticks, steps), bars, PER_BEAT, has_kept=False)


def on_grid(score: Score, notes: Played) -> Score:
    """Return `PLAYED_NOTE`s as they are on the grid, in the tracks of a score."""
    rows = np.empty(len(notes), NOTE)
    rows["onset"] = np.rint((BAR * notes["bar"] + notes["position"]) * TICKS_PER_BEAT)
    rows["duration"] = np.rint(notes["length"] * TICKS_PER_BEAT)
    rows["pitch"], rows["velocity"] = notes["pitch"], 1
    track_of = notes["part"] // 128
    tracks = [replace(t, notes=rows[track_of == i]) for i, t in enumerate(score.tracks)]
    return Score(TICKS_PER_BEAT, tracks)


def differences(played: Played, original: Played) -> dict[str, float]:
    """Return how unlike two ways of playing are, see the top of this file."""
    return {
        "velocity": wasserstein_distance(played["velocity"], original["velocity"]),
        "velocity by beat": profile_difference(played, original, "velocity", 1),
        "deviation": 1000 * wasserstein_distance(played["deviation"], original["deviation"]),
        "deviation by sixteenth": 1000 * profile_difference(played, original, "deviation", 4),
        "articulation": wasserstein_distance(played["articulation"], original["articulation"]),
    }


def profile_difference(played: Played, original: Played, column: str, per_beat: int) -> float:
    """Return the mean difference of the means at positions of the bar, weighted by notes."""
    means, counts = [], []
    for notes in (played, original):
        place = np.floor(notes["position"] * per_beat + 1e-6).astype(np.int64)
        counts.append(np.bincount(place, minlength=BAR * per_beat))
        sums = np.bincount(place, notes[column], BAR * per_beat)
        means.append(sums / np.maximum(counts[-1], 1))
    in_both = (counts[0] > 0) & (counts[1] > 0)
    if not in_both.any():
        return np.nan
    difference = np.abs(means[0] - means[1])[in_both]
    return float(np.average(difference, weights=counts[1][in_both]))


if __name__ == "__main__":
    main()
