"""What the benchmarks share: sides measured in turn, each in its own process, ratios, JSON."""

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
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


def arguments(description: str | None, **defaults: Any) -> argparse.Namespace:
    """The command line of a benchmark: `--device`, and an option for each default."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--side", help="measure one side only and print it as JSON")
    for name, default in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    return parser.parse_args()


def seconds(run: Callable[[], object], repeats: int, device: str = "cpu") -> list[float]:
    """Seconds of each repeat, after one that is not counted."""
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
    """The most memory that this process, or its GPU, has held."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 1e9
    scale = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / 1e9


def side(script: str, name: str, args: argparse.Namespace) -> dict[str, float]:
    """Measure one side in a process of its own, so that peaks and caches do not mix."""
    options = [
        f"--{key.replace('_', '-')}={value}" for key, value in vars(args).items() if key != "side"
    ]
    command = [sys.executable, "-m", f"benchmarks.{Path(script).stem}", f"--side={name}", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def sides(
    script: str, names: list[str], args: argparse.Namespace, rounds: int = 2
) -> dict[str, dict[str, float]]:
    """Each side in turn, `rounds` times, as a machine's speed drifts: the median of each figure."""
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            seen[name].append(side(script, name, args))
    return {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        for name, runs in seen.items()
    }


def row(what: str, a: float, b: float, unit: str, to_reach: str) -> dict[str, Any]:
    """A row of the table: two sides, their ratio, and what was to reach."""
    return {"what": what, "a": a, "b": b, "unit": unit, "ratio": a / b, "to reach": to_reach}


def report(script: str, rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """Print the rows, and write them with the machine and the command as JSON."""
    for entry in rows:
        print(
            f"{entry['what']}: {entry['a']:.4g} / {entry['b']:.4g} {entry['unit']} = "
            f"{entry['ratio']:.3f} (to reach: {entry['to reach']})",
            flush=True,
        )
    RESULTS.mkdir(exist_ok=True)
    name = Path(script).stem + ("" if args.device == "cpu" else f"-{args.device}")
    content = {
        "command": f"python -m benchmarks.{Path(script).stem} " + " ".join(sys.argv[1:]),
        "machine": machine(args.device),
        "rows": rows,
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


def machine(device: str) -> dict[str, str | int]:
    """What it ran on."""
    versions = {}
    for package in (
        "torch",
        "pytorch-fast-transformers",
        "performer-pytorch",
        "flash-linear-attention",
        "triton",
    ):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    chip = platform.processor() or platform.machine()
    if device == "cuda":
        chip = torch.cuda.get_device_name()
    return {
        "chip": chip,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        **versions,
    }
