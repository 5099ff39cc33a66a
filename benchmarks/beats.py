"""Measure the beats that are found in files: python -m benchmarks.beats --pop909 FOLDER …

F-measures of beats and of the beginnings of bars within 70 ms, as `mir_eval` defines them, and
seconds a file. Of songs with annotated chords, also the share of their new roots at bars. Each set
is measured if its folder is given:

- `--pop909`: songs of POP909 with its annotated beats, of which those whose number ends in 1 were
  used for development, and those that end in 7 are judged.
- `--performances`: files X.mid with X_annotations.txt, as in the data set ASAP (Foscarin et al.
  2020), whose beats nothing was learnt from.
- `--lieder`: songs of the clone of OpenScore Lieder by the composers that the network did not learn
  from, performed freely at random as benchmarks/beat_performance.py says.
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
from benchmarks.beat_network import HELD_OUT
from benchmarks.beat_performance import Piece as PerformedPiece
from benchmarks.beat_performance import perform
from musicgen.composer.draw import changes
from musicgen.data.corpora.base import evenly_spaced
from musicgen.data.corpora.pop_piano import CHORDS_FILE
from musicgen.errors import UserError
from musicgen.midi import Score, Track, find_music, notes_from, read
from musicgen.plugins.beats.beats import find_beats, read_beats

TOLERANCE = 0.07  # seconds
TICKS_A_SECOND = 960  # of performed songs, at 120 quarters a minute
SAME_LENGTH = 0.1  # difference of the numbers of bars found and annotated
FloatArray = NDArray[np.float64]


class Annotated(NamedTuple):
    """A piece, the seconds of its beats, of its bars, and of new roots of its chords, if known."""

    name: str
    score: Score
    beats: FloatArray
    bars: FloatArray
    roots: FloatArray = np.empty(0)


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
            bars, roots = beats.times[beats.bar_starts], new_roots(path.with_name(CHORDS_FILE))
            yield Annotated(name, score, beats.times, bars, roots)


def new_roots(path: Path) -> FloatArray:
    """Return the seconds at which chords with another root than the last one begin."""
    lines = [line.split() for line in path.read_text().splitlines()]
    chords = [(float(start), name.split(":")[0]) for start, _, name in lines if name != "N"]
    return np.array([start for start, _ in changes(chords)])


def performances(root: Path) -> Iterator[Annotated]:
    for path in sorted(root.rglob("*_annotations.txt")):
        file = path.with_name(path.name.replace("_annotations.txt", ".mid"))
        if file.is_file() and not file.name.startswith("midi_score"):
            rows = [line.split("\t") for line in path.read_text().splitlines()]
            times = np.array([float(row[0]) for row in rows])
            is_bar = np.array([row[2].startswith("db") for row in rows])
            yield Annotated(path.parent.name, read(file), times, times[is_bar])


def performed_songs(root: Path, count: int = 60) -> Iterator[Annotated]:
    corpus = measure.corpus("openscore_lieder", root)
    held_out = [p for p in corpus.pieces() if any(name in p.name for name in HELD_OUT)]
    for number, piece in enumerate(evenly_spaced(held_out, count)):
        printed = PerformedPiece.of(corpus.read_piece(piece), is_composed=False)
        notes, beats, bars = perform(printed, np.random.default_rng(number), "free")
        onset = np.rint(notes.onset * TICKS_A_SECOND).astype(np.int64)
        duration = np.maximum(1, np.rint(notes.duration * TICKS_A_SECOND)).astype(np.int64)
        rows = zip(onset, duration, notes.pitch, notes.velocity.astype(np.int64), strict=True)
        score = Score(TICKS_A_SECOND // 2, [Track("Piano", notes=notes_from([*rows]))])
        yield Annotated(piece.name, score, beats, bars)


def measured(pieces: Iterator[Annotated]) -> dict[str, Any]:
    """Return the means of a set, and the pieces whose beats are worst."""
    rows, shares = [], list[tuple[float, ...]]()
    for piece in pieces:
        start = time.perf_counter()
        found = find_beats(piece.score)
        seconds = time.perf_counter() - start
        beats = f_measure(found.times, piece.beats)
        found_bars = found.times[found.bar_starts]
        bars = f_measure(found_bars, piece.bars)
        rows.append((beats, bars, seconds, found.doubt, piece.name))
        if len(piece.roots):
            is_as_long = abs(len(found_bars) / len(piece.bars) - 1) < SAME_LENGTH
            at_bars = [share_at(piece.roots, each) for each in (found_bars, piece.bars)]
            shares.append((*at_bars, is_as_long, bars < 0.5))
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
        **(roots_at_bars(np.array(shares)) if shares else {}),
    }


def share_at(moments: FloatArray, bars: FloatArray) -> float:
    return float((np.abs(moments[:, None] - bars).min(axis=1) <= TOLERANCE).mean())


def roots_at_bars(shares: FloatArray) -> dict[str, Any]:
    """Return where new roots are.

    Args:
        shares: of each piece the shares of new roots at bars found, and at annotated bars, whether
            both bars are as long, and whether most bars found are not the annotated ones. [N, 4]
    """
    as_long, others = shares[shares[:, 2] == 1], shares[shares[:, 3] == 1]
    found, annotated = as_long.mean(axis=0)[:2]
    return {
        "pieces with bars as long as the annotated ones": len(as_long),
        "new roots at bars found": round(float(found), 3),
        "new roots at annotated bars": round(float(annotated), 3),
        "pieces with bars below .5": len(others),
        "of these, more new roots at bars found": int((others[:, 0] > others[:, 1]).sum()),
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
    parser.add_argument("--lieder", type=Path)
    parser.add_argument("--metronomic", type=Path)
    parser.add_argument("--files", type=int, default=500, help="metronomic files")
    args = parser.parse_args()
    content: dict[str, Any] = {}
    if args.pop909:
        content["POP909, development"] = measured(pop909_songs(args.pop909, "1"))
        content["POP909, judged"] = measured(pop909_songs(args.pop909, "7"))
    if args.performances:
        content["performances"] = measured(performances(args.performances))
    if args.lieder:
        content["songs performed at random"] = measured(performed_songs(args.lieder))
    if args.metronomic:
        content["metronomic"] = changed_files(args.metronomic, args.files)
    for name, values in content.items():
        print(name, values)
    measure.write_results("beats", content)


if __name__ == "__main__":
    main()
