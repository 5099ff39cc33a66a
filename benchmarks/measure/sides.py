"""Time and memory of the sides of a comparison, each measured in a process of its own."""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def arguments(description: str | None, **defaults: Any) -> argparse.Namespace:
    """Parse a benchmark's command line: `--device`, and an option for each default."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--side", help="measure one side only and print it as JSON")
    for name, default in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    return parser.parse_args()


def seconds(run: Callable[[], object], repeats: int, device: str = "cpu") -> list[float]:
    """Return the seconds of each repeat, after one warm-up."""
    times = []
    for _ in range(repeats + 1):
        synchronise(device)
        start = time.perf_counter()
        run()
        synchronise(device)
        times.append(time.perf_counter() - start)
    return times[1:]


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def peak_gigabytes(device: str = "cpu") -> float:
    """Return the peak memory of this process, or of its GPU."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 1e9
    scale = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / 1e9


def sides(
    script: str, names: list[str], args: argparse.Namespace, rounds: int = 2
) -> dict[str, dict[str, float]]:
    """Measure the sides in turn, `rounds` times, and return the median of each figure.

    Taking turns spreads the drift of the machine's speed over all sides.
    """
    results: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            results[name].append(side(script, name, args))
    return {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        for name, runs in results.items()
    }


def side(script: str, name: str, args: argparse.Namespace) -> dict[str, float]:
    """Measure one side in a process of its own, so that memory peaks and caches do not mix."""
    options = [
        f"--{key.replace('_', '-')}={value}" for key, value in vars(args).items() if key != "side"
    ]
    command = [sys.executable, "-m", f"benchmarks.{Path(script).stem}", f"--side={name}", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])
