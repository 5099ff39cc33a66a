"""Compare a training step of another copy of the package with this one's, in turns.

Each step runs on one thread of a process of its own, which imports the package from one of the two
folders. Seconds are of CPU time. The stored figures compare the one causal product with the form
for CPUs that it replaced, which had a loop over chunks and a backward pass of its own.

    python -m benchmarks.product_forms --before FOLDER
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import torch

from benchmarks import measure
from musicgen.attention import FAVOR, LinearAttention
from musicgen.models import Transformer
from musicgen.position import RoPE, Sinusoidal

SIZES = ("demo", "published")


def measure_step(size: str, steps: int) -> dict[str, float]:
    """Return the median CPU seconds of a step of one model, and the peak memory in GB."""
    favor = partial(FAVOR, num_features=64 if size == "demo" else 128)
    attention = partial(LinearAttention, feature_map=favor)
    if size == "demo":
        batch, length = 8, 512
        attention = partial(attention, decay="head")
        sizes = {"dim": 128, "num_layers": 4, "num_heads": 4, "ff_dim": 512, "short_conv": 4}
        model = Transformer(400, position=RoPE, attention=attention, dropout=0.0, **sizes)
    else:
        batch, length = 1, 2048
        sizes = {"dim": 512, "num_layers": 2, "num_heads": 8, "ff_dim": 2048}
        model = Transformer(400, position=Sinusoidal, attention=attention, dropout=0.1, **sizes)
    seconds = []
    for _ in range(steps + 1):  # the first one warms up
        tokens = torch.randint(400, (batch, length))
        start = time.process_time()
        model(tokens).logsumexp(-1).mean().backward()
        seconds.append(time.process_time() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"seconds": statistics.median(seconds[1:]), "gigabytes": peak}


def run(folder: str, size: str, steps: int) -> dict[str, float]:
    """Measure a step of the package in a folder, in a process of its own."""
    command = [sys.executable, __file__, f"--side={size}", f"--steps={steps}"]
    environment = {**os.environ, "PYTHONPATH": folder}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def main() -> None:
    torch.set_num_threads(1)
    args = measure.arguments(__doc__, before="", steps=5, rounds=4)
    if args.side:
        print(json.dumps(measure_step(args.side, args.steps)))
        return
    rows = []
    folders = (str(Path(args.before).resolve()), str(measure.ROOT))
    for size in SIZES:
        found: dict[str, list[dict[str, float]]] = {folder: [] for folder in folders}
        for _ in range(args.rounds):
            for folder, runs in found.items():
                runs.append(run(folder, size, args.steps))
        for name, unit in (("seconds", "s a step"), ("gigabytes", "GB")):
            before, after = ([each[name] for each in runs] for runs in found.values())
            what = f"one product / the form before, {size} size"
            rows.append(measure.compare(what, after, before, unit, "≤ 1.1"))
    measure.save_results(__file__, rows)


if __name__ == "__main__":
    main()
