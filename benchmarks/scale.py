"""Corpora of 1,000 to a million files: preparing them, the first batch, memory and file sizes.

Most are made: the files are links to one, and instead of their encoding each piece gets the tokens
of one of 200 melodies and a sketch of its own. Everything else is a preparation as it is: listing,
storing, the search for duplicates, reports. `--real N` encodes N different files: composed
songs, 25 times each, transposed and with their passages in other orders.
The folder is prepared, prepared again (when all files are compared with the cache), and opened as
for training, up to the first batch, each in a process of its own. Times are without the imports.

    nice -n 10 python -m benchmarks.scale [--sizes 1000,10000] [--real 10000 [--workers 1]]
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measure
from musicgen.composer import compose_pop
from musicgen.data.corpora.midi_folder import MidiFolder
from musicgen.data.loading import MusicDataModule
from musicgen.data.preparation import prepare
from musicgen.data.preparation.duplicates import SKETCH_SIZE
from musicgen.data.preparation.encoding import EncodedPiece, PieceRecord, piece_digest
from musicgen.midi import Score, Track, notes_from, sort_notes, write
from musicgen.tokenization import REMI
from musicgen.tokenization.base import EncodingSummary

_PER_FOLDER, _NUM_MELODIES, _LINKS, _PER_SONG = 1000, 200, 50_000, 25


def melody(seed: int, num_notes: int = 24) -> Score:
    """Return a melody of six bars."""
    pitches = np.random.default_rng(seed).integers(40, 90, num_notes).tolist()
    notes = [(480 * i, 240, pitch, 64) for i, pitch in enumerate(pitches)]
    return Score(480, [Track("Piano", notes=notes_from(notes))])


@lru_cache(maxsize=1)
def song(index: int) -> Score:
    return compose_pop(0, index)


def rearranged(index: int) -> Score:
    """Return a song, transposed, with its passages of four bars in another order."""
    composed, rng = song(index // _PER_SONG), np.random.default_rng(index)
    notes = composed.tracks[0].notes.copy()
    length = 16 * composed.ticks_per_beat
    passage, onset = np.divmod(notes["onset"], length)
    notes["onset"] = onset + length * rng.permutation(passage.max() + 1)[passage]
    notes["pitch"] += rng.integers(-5, 7)
    return Score(composed.ticks_per_beat, [Track("Piano", notes=sort_notes(notes))])


def write_corpus(root: Path, num_pieces: int, *, real: bool) -> None:
    """Write files to folders of 1,000, all different or links."""
    path = root
    for i in range(num_pieces):
        folder = root / f"{i // _PER_FOLDER:04d}"
        if i % _PER_FOLDER == 0:
            folder.mkdir(parents=True)
        if real or i % _LINKS == 0:
            path = folder / f"{i:07d}.mid"
            write(rearranged(i) if real else melody(i), path)
        else:
            os.link(path, folder / f"{i:07d}.mid")


def made_results(_: Any, pieces: Sequence[Any], **__: Any) -> Iterator[tuple[int, Any]]:
    """Yield what encoding would: in place of `run_limited`."""
    tokenizer, rng = REMI(), np.random.default_rng(0)
    encoded = [tokenizer.encode(melody(i)) for i in range(_NUM_MELODIES)]
    starts = [tokenizer.crop_starts(tokens, bar_length=16).astype(np.int32) for tokens in encoded]
    for i, piece in enumerate(pieces):
        content = f"{i:024x}"
        tokens, own = encoded[i % _NUM_MELODIES].astype(np.uint16), starts[i % _NUM_MELODIES]
        record = PieceRecord(
            piece.name,
            piece_digest(piece.name, content),
            bar_length=16,
            num_tokens=len(tokens),
            num_bars=len(own),
            encoding=EncodingSummary(24, 24, rules=["made"]),
        )
        sketch = np.sort(rng.integers(2**63, size=SKETCH_SIZE, dtype=np.uint64))
        yield i, (content, EncodedPiece(record, tokens, own, sketch))


def run_side(side: str, root: Path, *, real: bool, workers: int = 0) -> dict[str, float]:
    """Prepare a corpus, or make its first batch; return the time and memory that it took."""
    if not real:
        prepare.run_limited = made_results  # type: ignore[assignment]
    gc.collect()
    before = measure.peak_gigabytes()
    wall, cpu = time.perf_counter(), time.process_time()
    corpus = MidiFolder(root / "midi", group=None, exclude=None)
    settings = {"chords": "none", "prepare_workers": workers or None}
    data: MusicDataModule = measure.data_module(
        corpus, REMI(), root / "cache", length=64, batch_size=8, **settings
    )
    if side == "start":
        data.prepare_data()
        next(iter(data.train_dataloader()))
        next(iter(data.eval_dataloader("val")))
    else:
        _ = data.encoded.cache
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "worker_cpu_seconds": children.ru_utime + children.ru_stime,
        "peak_gigabytes": measure.peak_gigabytes(),
        "gigabytes_of_imports": before,
    }


def measure_size(args: argparse.Namespace, num_pieces: int, *, real: bool) -> dict[str, Any]:
    """Measure all sides at one size; return a row of the table."""
    with tempfile.TemporaryDirectory(dir=args.folder or None) as name:
        root = Path(name)
        write_corpus(root / "midi", num_pieces, real=real)
        row: dict[str, Any] = {"pieces": num_pieces, "files": "real" if real else "made"}

        def measured(side: str) -> dict[str, float]:
            own = vars(args) | {"folder": name, "real": int(real)}
            return measure.side(__file__, side, argparse.Namespace(**own))

        row["prepare"] = measured("prepare")
        row["prepare again"] = measured("prepare again")
        row["start"] = measured("start")
        (cache,) = (path.parent for path in root.glob("cache/*/*/index.npy"))
        files = itertools.chain(cache.iterdir(), root.glob("cache/*/encoded.db"))
        row["megabytes"] = {path.name: path.stat().st_size / 1e6 for path in files}
    return row


def main() -> None:
    sizes = "1000,10000,100000,1000000"
    args = measure.arguments(__doc__, sizes=sizes, real=0, workers=0, folder="")
    if args.side:
        print(
            json.dumps(
                run_side(args.side, Path(args.folder), real=bool(args.real), workers=args.workers)
            )
        )
        return
    corpora = [(int(size), False) for size in args.sizes.split(",") if size]
    corpora += [(args.real, True)] if args.real else []
    rows = []
    for num_pieces, real in corpora:
        rows.append(measure_size(args, num_pieces, real=real))
        print(json.dumps(rows[-1], indent=1), flush=True)
        measure.write_results(__file__, {"rows": rows}, args)


if __name__ == "__main__":
    main()
