"""Races of positional encodings at equal size, steps and seeds: loss at trained length and beyond.

    python -m benchmarks.race --root FOLDER [--race musical_time] [--seeds 1,2,3] [--entries rope]

On POP909 without transposition, in batches of 8, with FAVOR+ of 64 features; trained in bf16-mixed,
measured in float32. `decay`: 4 layers, width 192, 6 heads, 800 steps of 512 tokens; encodings with
and without learned decay. At the same size, `sites`: rotary encodings on queries and keys, and on
features; `combined`: encodings with decay by token, short convolution and Muon. `musical_time`:
4 layers, width 128, 4 heads, 600 steps of 256 tokens; encodings by index and by musical time. At
that size and in float32, `coordinates`: by index, musical time, several coordinates, and one for
each head; `options`: short convolution, decay by token, output gate, normalised q and k, tied
embeddings, Muon, averaged weights.

On the JSB chorales (--root is their JSON file), `jsb`: 4 layers, width 128, 4 heads, cycles, Muon,
300 steps of 2 transposed windows of 1,024 tokens in float32; encodings of softmax attention, of
FAVOR+ with learned decay, and with several coordinates. Measured in nats per note on the whole
validation pieces; differences are paired per piece.

Finished entries are kept in results/, interrupted ones are resumed; several processes may run
different entries at once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np
from filelock import FileLock

from benchmarks import measure
from benchmarks.race.entries import RACES, Race
from musicgen import load
from musicgen.cli.datasets import open_training_data
from musicgen.files import write_text
from musicgen.metrics import Summary

PER_NOTE = "nats per note"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--root",
        required=True,
        help="the corpus: POP909's folder, or the JSON file of the JSB chorales",
    )
    parser.add_argument("--race", default="decay", choices=RACES)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--entries", help="a selection, such as none,sine_spe+decay")
    args = parser.parse_args()
    race = RACES[args.race]
    entries = args.entries.split(",") if args.entries else race.entries
    if unknown := sorted({*entries} - {*race.entries}):
        parser.error(f"no entries of {race.name}: {', '.join(unknown)}")
    for seed in map(int, args.seeds.split(",")):
        for entry in entries:
            with FileLock(race.runs / f"{entry}-{seed}.lock"):  # held by the process that trains it
                rows = saved_rows(race)
                if not any(row["entry"] == entry and row["seed"] == seed for row in rows):
                    save_row(race, run(race, entry, seed, args.root))
    print(as_markdown(race, saved_rows(race)))


def run(race: Race, entry: str, seed: int, root: str) -> dict[str, Any]:
    """Train one entry, or resume it, and measure it on the held-out pieces."""
    folder = race.runs / f"{entry}-{seed}"
    if (folder / "checkpoints" / "last.ckpt").is_file():
        overrides = [f"resume={folder}"]
    else:
        overrides = race.overrides(entry, seed, root, folder)
    start = time.monotonic()
    subprocess.run([sys.executable, "train.py", *overrides], check=True, stdout=sys.stderr)
    duration = time.monotonic() - start
    model = load(folder / "checkpoints" / "last.ckpt")
    data = open_training_data(model)
    indices = data.split(race.split)
    measured = measure.piece_losses(model, data, indices, 4 * race.length, seed=seed)
    pieces, losses = zip(*measured, strict=True)
    row = {"entry": entry, "seed": seed, "pieces": len(pieces), "seconds": round(duration)}
    for name, (start_at, end) in race.ranges.items():
        means = [x[start_at:end].mean() for x in losses if len(x) >= end]
        row[name] = round(float(np.mean(means)), 4)
    if race.whole:  # without the end token, as published
        notes = [model.tokenizer.num_notes(piece) for piece in pieces]
        nats = [float(x[:-1].sum()) for x in losses]
        row[PER_NOTE] = round(sum(nats) / sum(notes), 4)
        row["by piece"] = [round(n / count, 4) for n, count in zip(nats, notes, strict=True)]
    return row


def saved_rows(race: Race) -> list[dict[str, Any]]:
    return json.loads(race.table.read_text())["runs"] if race.table.is_file() else []


def save_row(race: Race, row: dict[str, Any]) -> None:
    """Add a finished run to the table, with the command and the machine."""
    with FileLock(race.runs / "table.lock"):
        content = {
            "command": f"python -m benchmarks.race --root FOLDER --race {race.name}",
            "machine": measure.machine("cpu") | {"threads": os.environ.get("OMP_NUM_THREADS")},
            "runs": [*saved_rows(race), row],
        }
        write_text(race.table, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def as_markdown(race: Race, runs: list[dict[str, Any]]) -> str:
    """Return a table of each entry's mean over seeds ± standard deviation.

    Where pieces are saved, also the mean difference from the best entry, paired per piece.
    """
    columns = [PER_NOTE] if race.whole else list(race.ranges)
    differences = paired_differences(runs) if race.whole else {}
    heads = [*columns, *(["more than the best, paired per piece"] if differences else [])]
    lines = [f"| | seeds | {' | '.join(heads)} |", "|---" * (2 + len(heads)) + "|"]
    for entry in race.entries:
        rows = [row for row in runs if row["entry"] == entry]
        if not rows:
            continue
        cells = []
        for name in columns:
            values = [row[name] for row in rows]
            deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.3f}{deviation}")
        if differences:
            found = differences[entry]
            cells.append(f"{found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}]")
        lines.append(f"| {entry} | {len(rows)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def paired_differences(runs: list[dict[str, Any]]) -> dict[str, Summary]:
    """Return, for each entry, the nats per note above the best entry's, over pieces.

    The value of a piece is its mean over seeds; the intervals are bootstrap ones over pieces, and
    do not cover other seeds.
    """
    names = dict.fromkeys(row["entry"] for row in runs)
    pieces = {
        name: np.mean([row["by piece"] for row in runs if row["entry"] == name], axis=0)
        for name in names
    }
    best = min(pieces.values(), key=lambda values: float(values.mean()), default=None)
    return {name: Summary.of(values - best) for name, values in pieces.items()}


if __name__ == "__main__":
    main()
