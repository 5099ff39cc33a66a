"""Results of a benchmark: rows of ratios, with the machine and the command, as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from musicgen.files import write_text

RESULTS = Path(os.environ.get("BENCHMARK_RESULTS", Path(__file__).parents[1] / "results"))
PACKAGES = (
    "torch",
    "pytorch-fast-transformers",
    "performer-pytorch",
    "flash-linear-attention",
    "triton",
)


def row(what: str, a: float, b: float, unit: str, target: str) -> dict[str, Any]:
    """Return a row of the table: two sides, their ratio and its target."""
    return {"what": what, "a": a, "b": b, "unit": unit, "ratio": a / b, "target": target}


def compare(
    what: str, a: Sequence[float], b: Sequence[float], unit: str, target: str
) -> dict[str, Any]:
    """Return a row of two interleaved sides: their medians, the median and range of the ratios.

    Ratios are formed round by round.
    """
    ratios = sorted(x / y for x, y in zip(a, b, strict=True))
    entry = row(what, statistics.median(a), statistics.median(b), unit, target)
    return entry | {
        "ratio": statistics.median(ratios),
        "lowest": ratios[0],
        "highest": ratios[-1],
        "rounds": len(ratios),
    }


def time_and_memory(
    what: str,
    sides: tuple[str, str],
    times: Mapping[str, Sequence[float]],
    memory: Mapping[str, float],
    targets: tuple[str, str] = ("—", "—"),
) -> list[dict[str, Any]]:
    """Return the rows of two sides' seconds a step and gigabytes."""
    a, b = sides
    return [
        compare(what, times[a], times[b], "s a step", targets[0]),
        row(what, memory[a], memory[b], "GB", targets[1]),
    ]


def save_results(script: str, rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """Print the rows, and write them with the machine and the command to results/."""
    for entry in rows:
        spread = f" ({entry['lowest']:.3f} to {entry['highest']:.3f})" if "lowest" in entry else ""
        print(
            f"{entry['what']}: {entry['a']:.4g} / {entry['b']:.4g} {entry['unit']} = "
            f"{entry['ratio']:.3f}{spread} (target: {entry['target']})",
            flush=True,
        )
    write_results(script, {"rows": rows}, args)


def write_results(script: str, content: dict[str, Any], args: argparse.Namespace) -> None:
    """Write a script's results, with the machine and the command, to results/."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    name = Path(script).stem + ("" if args.device == "cpu" else f"-{args.device}")
    content = {
        "command": f"python -m benchmarks.{Path(script).stem} " + " ".join(sys.argv[1:]),
        "machine": machine(args.device),
        **content,
    }
    write_text(RESULTS / f"{name}.json", json.dumps(content, indent=1) + "\n")


def machine(device: str) -> dict[str, str | int]:
    """Return processor, threads and package versions."""
    versions = {}
    for package in PACKAGES:
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
