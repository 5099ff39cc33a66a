"""Measure what a corpus of a million small files costs: listing, shards, joining, start of a rank.

The files are made here: --distinct contents of one bar, and further names of them as hard links.
Identical files are encoded once. So the time of `shards` is that of reading --files files, of
encoding --distinct of them and of storing --files records. Each part is a process of its own, with
one process for encoding. Peaks of memory include those of the imports, which are a row of the
table.

    python -m benchmarks.scale [--files 1000000] [--distinct 20000] [--shards 4]
"""

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measure
from musicgen.midi import Score, Track, dumps, notes_from
from musicgen.tokenization import REMI

FILES_IN_FOLDER, NUM_NOTES = 1000, 8


def write_files(root: Path, num_files: int, num_distinct: int) -> None:
    """Write distinct files of one bar, and hard links to them, 1,000 to a folder."""
    paths = [root / f"{i // FILES_IN_FOLDER:04}/{i:07}.mid" for i in range(num_files)]
    for folder in {path.parent for path in paths}:
        folder.mkdir(parents=True)
    pitches = np.random.default_rng(0).integers(30, 100, (num_distinct, NUM_NOTES)).tolist()
    for i, path in enumerate(paths):
        if i < num_distinct:
            notes = notes_from((240 * j, 240, pitch, 64) for j, pitch in enumerate(pitches[i]))
            path.write_bytes(dumps(Score(480, [Track("", notes=notes)])))
        else:
            os.link(paths[i % num_distinct], path)


def list_files(data: Any, shards: int) -> None:
    data.encoded.corpus.pieces()


def encode_shards(data: Any, shards: int) -> None:
    for number in range(1, shards + 1):
        data.encoded.encode_shard(f"{number}/{shards}")


def join(data: Any, shards: int) -> None:
    data.prepare_data()


def start_first(data: Any, shards: int) -> None:
    """List the files, find that none has changed, and load a batch."""
    data.prepare_data()
    next(iter(data.train_dataloader()))


def start_other(data: Any, shards: int) -> None:
    """Open the cache that the first process names, and load a batch."""
    (index,) = data.encoded.folder.glob("*/index.npy")
    data.encoded.open_cache(index.parent)
    next(iter(data.train_dataloader()))


SIDES: dict[str, Callable[[Any, int], None]] = {
    "imports": lambda data, shards: None,
    "listing": list_files,
    "shards": encode_shards,
    "joining": join,
    "start of the first process": start_first,
    "start of another process": start_other,
}


def run(side: str, folder: Path, shards: int) -> dict[str, float]:
    """Return the seconds, the CPU seconds and the peak memory of a part."""
    corpus = measure.corpus("midi_folder", folder / "midi")
    settings: dict[str, Any] = {"chords": "none", "prepare_workers": 1, "length": 32}
    data = measure.data_module(corpus, REMI(chords=False), folder / "cache", **settings)
    began, used = time.perf_counter(), cpu_seconds()
    SIDES[side](data, shards)
    return {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": cpu_seconds() - used,
        "gigabytes": measure.peak_gigabytes(),
    }


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def main() -> None:
    args = measure.arguments(__doc__, files=1_000_000, distinct=20_000, shards=4, folder="")
    if args.side:
        print(json.dumps(run(args.side, Path(args.folder), args.shards)))
        return
    rows, options = [], vars(args).copy()
    with tempfile.TemporaryDirectory(dir=args.folder or None) as folder:
        write_files(Path(folder) / "midi", args.files, args.distinct)
        for name in SIDES:
            side = argparse.Namespace(**options | {"folder": folder})
            rows.append({"what": name, **measure.side(__file__, name, side)})
            print(json.dumps(rows[-1]), flush=True)
            stored = sum(path.stat().st_size for path in Path(folder).rglob("*.bin"))
            sizes = {"files": args.files, "distinct": args.distinct, "shards": args.shards}
            content = {**sizes, "megabytes_of_tokens": stored / 1e6, "rows": rows}
            measure.write_results(__file__, content)


if __name__ == "__main__":
    main()
