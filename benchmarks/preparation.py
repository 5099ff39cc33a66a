"""Compare how many files per second we and MidiTok encode, of POP909 and of multi-track files.

MidiTok is configured to make the same tokens, REMI with tempi, 16 positions a bar and 24
velocities, and finds no chords; of multi-track files ours are those of Groove2Groove. Both sides
read the same MIDI files in the same number of processes; the time to start the processes does not
count. Ours includes the report, the search for duplicates and the cache. Of POP909, reading and
encoding are also measured alone, in CPU time.

    python -m benchmarks.preparation --root POP909 [--multitrack FOLDER] [--processes 2]
"""

import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import symusic

from benchmarks import measure
from musicgen.data.corpora import POP909, Corpus, Piece
from musicgen.data.corpora.base import evenly_spaced
from musicgen.data.preparation import TokenCache
from musicgen.midi import Score, find_music, read
from musicgen.tokenization import REMI, Groove2Groove

NUM_ALONE, ALONE_ROUNDS = 20, 16  # files that are read and encoded alone, and how often
Run = Callable[[], object]


class Files(Corpus):
    """A corpus of the files that it is given."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def pieces(self) -> list[Piece]:
        return [Piece(path.stem, path, path.stem) for path in self.files]

    def read(self, path: Path) -> Score:
        return read(path)

    def reader_id(self) -> str:
        return "benchmark"


def miditok_of(kind: str) -> Any:
    """Return MidiTok's REMI: one piano with tempi, or many tracks with their programs."""
    import miditok

    config = miditok.TokenizerConfig(
        beat_res={(0, 4): 4},
        num_velocities=24,
        use_tempos=kind == "piano",
        use_programs=True,
        one_token_stream_for_programs=True,
    )
    return miditok.REMI(config)


def encode_by_miditok(path: Path, tokenizer: Any) -> int:
    """Return the number of tokens, 0 if the file is refused."""
    try:
        encoded = tokenizer(path)
    except Exception:
        return 0
    return len(encoded.ids)


def run(side: str, files: list[Path], processes: int) -> dict[str, float]:
    """Return files and tokens per second."""
    who, kind = side.split()
    if who == "miditok":
        function = partial(encode_by_miditok, tokenizer=miditok_of(kind))
        with multiprocessing.get_context("fork").Pool(processes) as pool:
            pool.map(function, files[:processes])
            began = time.perf_counter()
            tokens = sum(pool.map(function, files, chunksize=8))
            seconds = time.perf_counter() - began
    else:
        tokenizer = REMI(chords=False) if kind == "piano" else Groove2Groove()
        with tempfile.TemporaryDirectory() as folder:
            settings: dict[str, Any] = {"chords": "markers", "prepare_workers": processes}

            def encode(files: list[Path], name: str) -> TokenCache:
                corpus = Files(files)
                data = measure.data_module(corpus, tokenizer, Path(folder) / name, **settings)
                cache: TokenCache = data.encoded.cache
                return cache

            encode(files[:8], "warm")
            began = time.perf_counter()
            cache = encode(files, "cache")
            seconds = time.perf_counter() - began
            tokens = int(cache.lengths.sum())
    return {"files": len(files) / seconds, "tokens": tokens / seconds}


def reading(files: list[Path]) -> tuple[Run, Run]:
    """Return runs of our reader and of symusic's."""
    return lambda: [read(path) for path in files], lambda: [symusic.Score(path) for path in files]


def encoding(files: list[Path]) -> tuple[Run, Run]:
    """Return runs of our REMI without chords and of MidiTok's."""
    ours, theirs = REMI(chords=False), miditok_of("piano")
    return (
        lambda: [ours.encode(read(path)) for path in files],
        lambda: [encode_by_miditok(path, theirs) for path in files],
    )


def alone(files: list[Path]) -> Iterator[dict[str, Any]]:
    """Yield rows of reading, and of reading and encoding, in the CPU time of a file."""
    files = evenly_spaced(files, NUM_ALONE)
    ours, theirs = reading(files)
    yield in_turns("reading alone: ours / symusic", ours, theirs, len(files), "—")
    ours, theirs = encoding(files)
    yield in_turns("encoding alone: miditok / ours", theirs, ours, len(files), "≥ 20")


def in_turns(what: str, a: Run, b: Run, files: int, target: str) -> dict[str, Any]:
    times = measure.interleaved({"a": a, "b": b}, ALONE_ROUNDS, clock=time.process_time)
    per_file = [[seconds / files for seconds in times[side]] for side in ("a", "b")]
    return measure.compare(what, *per_file, "s", target)


def main() -> None:
    args = measure.arguments(__doc__, root="", multitrack="", processes=2, files=200, rounds=2)
    songs = [piece.path for piece in POP909(args.root, exclude=None).pieces()] if args.root else []
    kinds = {
        "ours piano": [song / f"{song.name}.mid" for song in songs],
        "ours tracks": find_music(args.multitrack) if args.multitrack else [],
    }
    kinds |= {"miditok piano": kinds["ours piano"], "miditok tracks": kinds["ours tracks"]}
    if args.side:
        # Spread over the corpus, since neighbours are similar.
        files = evenly_spaced(kinds[args.side], args.files)
        print(json.dumps(run(args.side, files, args.processes)))
        return
    found = measure.sides(__file__, [side for side in kinds if kinds[side]], args, args.rounds)
    rows = []
    for ours, theirs, target in (
        ("ours piano", "miditok piano", "≥ 4"),
        ("ours tracks", "miditok tracks", "—"),
    ):
        if ours in found:
            rates = found[ours]["files"], found[theirs]["files"]
            rows.append(measure.row(f"{ours} / {theirs}", *rates, "files/s", target))
            print(f"{ours}: {found[ours]['tokens']:,.0f} tokens/s; {theirs}: "
                  f"{found[theirs]['tokens']:,.0f}")  # fmt: skip
    if songs:
        rows += alone(kinds["ours piano"])
    if not rows:
        raise SystemExit("give --root=POP909 or --multitrack=FOLDER")
    measure.save_results(__file__, rows)


if __name__ == "__main__":
    main()
