"""Train from nothing to a fixed validation loss: make speedrun

    python -m benchmarks.speedrun [--corpora chorales] [--change "two windows" loader.batch_size=2]

Each run is `python train.py experiment=speedrun/CORPUS` with a seed, and further settings of a
change that is to earn its place. It ends at the loss, and its seconds are those of its steps alone,
without validations, interpolated between the two validations around the loss. Beside them stands
the time of a step that no change to this package alters, by torch's own layers, in the mean of
before and after. What earlier calls measured stays in results/speedrun.json: docs/speedrun.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import nn

from benchmarks import measure, tables
from musicgen.files import read_csv
from musicgen.package_data import CONF

RATES = {"seconds": "train/tokens_per_second", "CPU seconds": "train/tokens_per_cpu_second"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--corpora", nargs="*", default=["composed", "chorales"])
    parser.add_argument("--seeds", nargs="*", type=int, default=[1, 2, 3])
    parser.add_argument(
        "--change", nargs="+", default=["the defaults"], help="what changed, then its settings"
    )
    parser.add_argument("--out", type=Path, default=Path("outputs/speedrun"))
    args = parser.parse_args()
    change, *settings = args.change
    path = measure.RESULTS / "speedrun.json"
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.is_file() else []
    for seed, corpus in product(args.seeds, args.corpora):
        folder = args.out / f"{corpus}-{time.time_ns()}"
        train = ["train.py", f"experiment=speedrun/{corpus}", f"seed={seed}", *settings]
        before = reference_seconds()
        subprocess.run([sys.executable, *train, f"hydra.run.dir={folder}"], check=True)
        reference = (before + reference_seconds()) / 2
        config = OmegaConf.load(CONF / f"experiment/speedrun/{corpus}.yaml")
        loss = config.callbacks.target.stopping_threshold
        row = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "commit": commit(), "corpus": corpus}
        row |= {"loss": loss, "change": change, "settings": settings, "seed": seed}
        row |= {"threads": torch.get_num_threads(), "reference CPU seconds": reference}
        runs.append(row | spent(folder / "metrics.csv", loss))
        print(runs[-1], flush=True)
        measure.write_results(__file__, {"runs": runs}, argparse.Namespace(device="cpu"))
    tables.main()


def spent(metrics: Path, loss: float) -> dict[str, Any]:
    """Return the steps, tokens and seconds of training until a validation loss.

    Interpolated between the last validation above it and the first that is not; None each if there
    is no such validation.
    """
    used = dict.fromkeys(["steps", "tokens", *RATES], 0.0)
    last = None
    for row in read_csv(metrics):
        if row["train/tokens"]:
            tokens = float(row["train/tokens"])
            seconds = {
                clock: used[clock] + (tokens - used["tokens"]) / float(row[rate])
                for clock, rate in RATES.items()
            }
            used = {"steps": int(row["step"]) + 1, "tokens": tokens, **seconds}
        if row["val/loss"]:
            found = float(row["val/loss"])
            if found <= loss:
                above, before = last or (found, used)
                share = (above - loss) / (above - found) if last else 1
                return {x: before[x] + share * (used[x] - before[x]) for x in used}
            last = found, used
    return dict.fromkeys(used)


def reference_seconds() -> float:
    """Return the CPU seconds of a training step of torch's own layers: the median of ten."""
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0, batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    x = torch.randn(1, 512, 128)
    run = {"": lambda: model(x).square().mean().backward()}
    times = measure.interleaved(run, 10, clock=time.process_time)[""]
    return statistics.median(times)


def commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.strip()


if __name__ == "__main__":
    main()
