"""A race of positional encodings at equal size, steps and seeds: loss where trained, and beyond.

    python -m benchmarks.race --root FOLDER [--seeds 1,2,3] [--entries sine_spe+decay,rope@time]

4 layers, width 192, 6 heads, FAVOR+ with 64 features, 800 steps of 8 × 512 tokens of POP909 as it
is (no transposition), trained in bf16-mixed, measured in float32. What is finished is kept in
results/race.json, what was interrupted goes on; several may run at once on different entries.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from benchmarks import measure
from musicgen import load
from musicgen.files import write_text
from musicgen.training.evaluation import position_losses

STEPS, LENGTH = 800, 512
SIZES = [
    "model.dim=192",
    "model.num_heads=6",
    "model.ff_dim=768",
    "model.num_layers=4",
    "model.attention.feature_map.num_features=64",
]
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
# Each with and without learned decay, and by index or musical time.
DECAY = [*ENCODINGS][:5]
TIME = ["exact_sine_spe", "sine_spe_64", "rope", "lrpe_orthogonal"]
ENTRIES = [
    *(name + decay for name in DECAY for decay in ("", "+decay")),
    *(name + time for name in TIME for time in ("", "@time") if name + time not in DECAY),
]
RUNS, TABLE = Path("outputs/race"), measure.RESULTS / "race.json"
# Positions of the targets, in tokens, over which a piece's loss is averaged.
SPANS = {"≤ 512 (trained)": (0, 512), "512–1024": (512, 1024), "1024–2048": (1024, 2048)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--root", required=True, help="POP909's folder")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--entries", default=",".join(ENTRIES), help="of: " + ", ".join(ENTRIES))
    args = parser.parse_args()
    for seed in map(int, args.seeds.split(",")):
        for entry in args.entries.split(","):
            if not any(row["entry"] == entry and row["seed"] == seed for row in known()):
                keep(run(entry, seed, args.root))
    print(as_markdown(known()))


def run(entry: str, seed: int, root: str) -> dict[str, Any]:
    """Train one entry, or go on with it, and measure it on the held-out pieces."""
    folder = RUNS / f"{entry}-{seed}"
    name, _, decay = entry.removesuffix("@time").partition("+")
    if (folder / "checkpoints" / "last.ckpt").is_file():
        overrides = [f"resume={folder}"]
    else:
        overrides = [
            "data=pop909",
            f"data.root={root}",
            f"data.length={LENGTH}",
            "tokenizer.max_transposition=0",
            *SIZES,
            *ENCODINGS[name],
            *(["model.position.coordinates=time"] if entry.endswith("@time") else []),
            f"model.attention.decay={'learned' if decay else 'none'}",
            f"seed={seed}",
            "trainer.precision=bf16-mixed",
            f"trainer.max_steps={STEPS}",
            f"trainer.val_check_interval={STEPS // 2}",
            f"hydra.run.dir={folder}",
        ]
    began = time.monotonic()
    subprocess.run([sys.executable, "train.py", *overrides], check=True, stdout=sys.stderr)
    took = time.monotonic() - began
    model = load(folder / "checkpoints" / "last.ckpt")
    data = model.corpus()
    pieces = [data.cache[i][: 4 * LENGTH + 1] for i in data.split("test")]
    losses = [position_losses(model.model, x, positions=model.positions(x)) for x in pieces]
    row = {"entry": entry, "seed": seed, "pieces": len(pieces), "seconds": round(took)}
    for span, (start, end) in SPANS.items():
        row[span] = round(float(np.mean([x[start:end].mean() for x in losses if len(x) >= end])), 4)
    return row


def known() -> list[dict[str, Any]]:
    return json.loads(TABLE.read_text())["runs"] if TABLE.is_file() else []


def keep(row: dict[str, Any]) -> None:
    """Add a finished run to the table, with the command and the machine."""
    with FileLock(RUNS / "table.lock"):
        runs = [*known(), row]
        content = {
            "command": "python -m benchmarks.race --root FOLDER",
            "machine": measure.machine("cpu") | {"threads": os.environ.get("OMP_NUM_THREADS")},
            "runs": runs,
        }
        write_text(TABLE, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def as_markdown(runs: list[dict[str, Any]]) -> str:
    """A row for each entry: mean over seeds, ± the standard deviation where there are several."""
    lines = [f"| | seeds | {' | '.join(SPANS)} |", "|---" * (2 + len(SPANS)) + "|"]
    for entry in ENTRIES:
        rows = [row for row in runs if row["entry"] == entry]
        if not rows:
            continue
        cells = []
        for span in SPANS:
            values = [row[span] for row in rows]
            spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.3f}{spread}")
        lines.append(f"| {entry} | {len(rows)} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
