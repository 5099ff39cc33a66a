"""Measure the beats that are found in files: python -m benchmarks.beats --pop909 FOLDER …

F-measures of beats and of the beginnings of bars within 70 ms, as `mir_eval` defines them, and
seconds a file. Each set is measured if its folder is given:

- `--pop909`: songs of POP909 with its annotated beats, of which those whose number ends in 1 were
  used for development, and those that end in 7 are judged.
- `--performances`: files X.mid with X_annotations.txt, as in the data set ASAP (Foscarin et al.
  2020), whose beats nothing was learnt from.
- `--metronomic`: files whose notes lie on their grid; how many of them do not stay as they are.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import measure
from musicgen.data.corpora.base import evenly_spaced
from musicgen.errors import UserError
from musicgen.midi import Score, find_music, read
from musicgen.midi.beats import find_beats, read_beats

TOLERANCE = 0.07  # seconds
FloatArray = NDArray[np.float64]


class Annotated(NamedTuple):
    """A piece, the seconds of its beats, and of the beginnings of its bars."""

    name: str
    score: Score
    beats: FloatArray
    bars: FloatArray


def f_measure(found: FloatArray, known: FloatArray) -> float:
    """Return the F-measure of times, of which each is matched with one at most."""
    matched, first = 0, 0
    for moment in found:
        while first < len(known) and known[first] < moment - TOLERANCE:
            first += 1
        if first < len(known) and known[first] <= moment + TOLERANCE:
            matched, first = matched + 1, first + 1
    return 2 * matched / max(1, len(found) + len(known))


def pop909_songs(root: Path, last_digit: str) -> Iterator[Annotated]:
    for path in sorted(root.rglob("beat_midi.txt")):
        name = path.parent.name
        if name.endswith(last_digit):
            beats = read_beats(path)
            score = read(path.parent / f"{name}.mid")
            yield Annotated(name, score, beats.times, beats.times[beats.bar_starts])


def performances(root: Path) -> Iterator[Annotated]:
    for path in sorted(root.rglob("*_annotations.txt")):
        file = path.with_name(path.name.replace("_annotations.txt", ".mid"))
        if file.is_file() and not file.name.startswith("midi_score"):
            rows = [line.split("\t") for line in path.read_text().splitlines()]
            times = np.array([float(row[0]) for row in rows])
            is_bar = np.array([row[2].startswith("db") for row in rows])
            yield Annotated(path.parent.name, read(file), times, times[is_bar])


def measured(pieces: Iterator[Annotated]) -> dict[str, Any]:
    """Return the means of a set, and the pieces whose beats are worst."""
    rows = []
    for piece in pieces:
        start = time.perf_counter()
        found = find_beats(piece.score)
        seconds = time.perf_counter() - start
        beats = f_measure(found.times, piece.beats)
        bars = f_measure(found.times[found.bar_starts], piece.bars)
        rows.append((beats, bars, seconds, found.doubt, piece.name))
    if not rows:
        raise SystemExit("no annotated pieces below that folder")
    beats, bars, seconds, doubt = np.array([row[:4] for row in rows]).T
    return {
        "pieces": len(rows),
        "beats": round(float(beats.mean()), 3),
        "bars": round(float(bars.mean()), 3),
        "seconds a piece": round(float(np.median(seconds)), 3),
        "doubt": round(float(doubt.mean()), 3),
        "correlation of doubt with errors": round(float(np.corrcoef(doubt, 1 - beats)[0, 1]), 2),
        "worst": {name: round(float(f), 3) for f, _, _, _, name in sorted(rows)[:5]},
    }


def changed_files(root: Path, count: int) -> dict[str, Any]:
    """Return how many metronomic files are moved, and which."""
    changed, num_read = [], 0
    for path in evenly_spaced(find_music(root), count):
        try:
            score = read(path)
        except UserError:
            continue
        num_read += 1
        if find_beats(score).source != "file":
            changed.append(path.name)
    return {"files": num_read, "moved": len(changed), "names": changed[:10]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pop909", type=Path)
    parser.add_argument("--performances", type=Path)
    parser.add_argument("--metronomic", type=Path)
    parser.add_argument("--files", type=int, default=500, help="metronomic files")
    parser.set_defaults(device="cpu")
    args = parser.parse_args()
    content: dict[str, Any] = {}
    if args.pop909:
        content["POP909, development"] = measured(pop909_songs(args.pop909, "1"))
        content["POP909, judged"] = measured(pop909_songs(args.pop909, "7"))
    if args.performances:
        content["performances"] = measured(performances(args.performances))
    if args.metronomic:
        content["metronomic"] = changed_files(args.metronomic, args.files)
    for name, values in content.items():
        print(name, values)
    measure.write_results("beats", content, args)


if __name__ == "__main__":
    main()
