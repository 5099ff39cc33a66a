"""Races of positional encodings at equal size, steps and seeds: loss where trained, and beyond.

    python -m benchmarks.race --root FOLDER [--race musical_time] [--seeds 1,2,3] [--entries rope]

On POP909 as it is (no transposition), in batches of 8, with 64 features of FAVOR+; trained in
bf16-mixed, measured in float32. `decay`: 4 layers, width 192, 6 heads, 800 steps of 512 tokens;
encodings with and without learned decay. `musical_time`: 4 layers, width 128, 4 heads, 600 steps of
256 tokens; encodings by index and by musical time. What is finished is kept in results/, what was
interrupted goes on; several may run at once on different entries.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from benchmarks import measure
from musicgen import load
from musicgen.files import write_text
from musicgen.training.evaluation import position_losses

ENCODINGS = {
    "none": ["position=none"],
    "sinusoidal": ["position=sinusoidal"],
    "sine_spe": ["position=sine_spe", "model.position.num_realizations=32"],
    "exact_sine_spe": ["position=sine_spe", "model.position.num_realizations=null"],
    "conv_spe": ["position=conv_spe", "model.position.num_realizations=32"],
    "sine_spe_64": ["position=sine_spe", "model.position.num_realizations=64"],
    "rope": ["position=rope"],
    "lrpe_orthogonal": ["position=lrpe_orthogonal"],
}
TIMED = ("exact_sine_spe", "sine_spe_64", "rope", "lrpe_orthogonal")


@dataclass(frozen=True)
class Race:
    """Who runs, how far, and with what model."""

    name: str
    steps: int
    length: int
    dim: int
    encodings: tuple[str, ...]
    variants: tuple[str, str]

    @property
    def entries(self) -> list[str]:
        return [name + variant for name in self.encodings for variant in self.variants]

    @property
    def runs(self) -> Path:
        return Path("outputs/race") / self.name

    @property
    def table(self) -> Path:
        return measure.RESULTS / f"race_{self.name}.json"

    @property
    def spans(self) -> dict[str, tuple[int, int]]:
        """Positions of the targets, in tokens, over which a piece's loss is averaged."""
        n = self.length
        return {
            f"≤ {n} (trained)": (0, n),
            f"{n}–{2 * n}": (n, 2 * n),
            f"{2 * n}–{4 * n}": (2 * n, 4 * n),
        }


RACES = {
    race.name: race
    for race in (
        Race("decay", 800, 512, 192, (*ENCODINGS,)[:5], ("", "+decay")),
        Race("musical_time", 600, 256, 128, TIMED, ("", "@time")),
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--root", required=True, help="POP909's folder")
    parser.add_argument("--race", default="decay", choices=RACES)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--entries", help="some of them only, such as none,sine_spe+decay")
    args = parser.parse_args()
    race = RACES[args.race]
    entries = args.entries.split(",") if args.entries else race.entries
    if unknown := sorted({*entries} - {*race.entries}):
        parser.error(f"no entries of {race.name}: {', '.join(unknown)}")
    for seed in map(int, args.seeds.split(",")):
        for entry in entries:
            with FileLock(race.runs / f"{entry}-{seed}.lock"):  # another process may be at it
                if not any(row["entry"] == entry and row["seed"] == seed for row in known(race)):
                    keep(race, run(race, entry, seed, args.root))
    print(as_markdown(race, known(race)))


def run(race: Race, entry: str, seed: int, root: str) -> dict[str, Any]:
    """Train one entry, or go on with it, and measure it on the held-out pieces."""
    folder = race.runs / f"{entry}-{seed}"
    name, _, decay = entry.removesuffix("@time").partition("+")
    if (folder / "checkpoints" / "last.ckpt").is_file():
        overrides = [f"resume={folder}"]
    else:
        overrides = [
            "data=pop909",
            f"data.root={root}",
            f"data.length={race.length}",
            "tokenizer.max_transposition=0",
            f"model.dim={race.dim}",
            f"model.num_heads={race.dim // 32}",
            f"model.ff_dim={4 * race.dim}",
            "model.num_layers=4",
            "model.attention.feature_map.num_features=64",
            *ENCODINGS[name],
            *(["model.position.coordinates=time"] if entry.endswith("@time") else []),
            f"model.attention.decay={'learned' if decay else 'none'}",
            f"seed={seed}",
            "trainer.precision=bf16-mixed",
            f"trainer.max_steps={race.steps}",
            f"trainer.val_check_interval={race.steps // 2}",
            f"hydra.run.dir={folder}",
        ]
    began = time.monotonic()
    subprocess.run([sys.executable, "train.py", *overrides], check=True, stdout=sys.stderr)
    took = time.monotonic() - began
    model = load(folder / "checkpoints" / "last.ckpt")
    data = model.corpus()
    pieces = [data.cache[i][: 4 * race.length + 1] for i in data.split("test")]
    losses = [position_losses(model.model, x, positions=model.positions(x)) for x in pieces]
    row = {"entry": entry, "seed": seed, "pieces": len(pieces), "seconds": round(took)}
    for span, (start, end) in race.spans.items():
        row[span] = round(float(np.mean([x[start:end].mean() for x in losses if len(x) >= end])), 4)
    return row


def known(race: Race) -> list[dict[str, Any]]:
    return json.loads(race.table.read_text())["runs"] if race.table.is_file() else []


def keep(race: Race, row: dict[str, Any]) -> None:
    """Add a finished run to the table, with the command and the machine."""
    with FileLock(race.runs / "table.lock"):
        runs = [*known(race), row]
        content = {
            "command": f"python -m benchmarks.race --root FOLDER --race {race.name}",
            "machine": measure.machine("cpu") | {"threads": os.environ.get("OMP_NUM_THREADS")},
            "runs": runs,
        }
        write_text(race.table, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def as_markdown(race: Race, runs: list[dict[str, Any]]) -> str:
    """A row for each entry: mean over seeds, ± the standard deviation where there are several."""
    spans = race.spans
    lines = [f"| | seeds | {' | '.join(spans)} |", "|---" * (2 + len(spans)) + "|"]
    for entry in race.entries:
        rows = [row for row in runs if row["entry"] == entry]
        if not rows:
            continue
        cells = []
        for span in spans:
            values = [row[span] for row in rows]
            spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.3f}{spread}")
        lines.append(f"| {entry} | {len(rows)} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
