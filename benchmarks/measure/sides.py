"""Time and memory of the sides of a comparison.

Times are compared within one process, where the sides take turns; peak memory is that of a process
per side.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
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


def interleaved(
    runs: Mapping[str, Callable[[], object]],
    rounds: int,
    device: str = "cpu",
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return the seconds of each run by round, after one warm-up of each.

    Every round times all runs in turn, so that a drift of the machine's speed affects all of them.

    Args:
        clock: `time.process_time` for CPU time, which other programs hardly change.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(rounds + 1):
        for name, run in runs.items():
            synchronise(device)
            start = clock()
            run()
            synchronise(device)
            if i > 0:
                times[name].append(clock() - start)
    return times


def seconds(run: Callable[[], object], repeats: int, device: str = "cpu") -> list[float]:
    """Return the seconds of each repeat, after one warm-up."""
    return interleaved({"": run}, repeats, device)[""]


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def peak_gigabytes(device: str = "cpu") -> float:
    """Return the peak memory of this process, or of its GPU."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 1e9
    scale = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / 1e9


def memory(script: str, names: Iterable[str], args: argparse.Namespace) -> dict[str, float]:
    """Return the peak memory of each side in GB.

    Measure it before anything else: a child process inherits its parent's peak.
    """
    return {name: side(script, name, args)["gigabytes"] for name in names}


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
