"""Results of a benchmark: rows of ratios, with the machine and the command, as JSON."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parents[1] / "results"
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


def save_results(script: str, rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """Print the rows, and write them with the machine and the command to results/."""
    for entry in rows:
        print(
            f"{entry['what']}: {entry['a']:.4g} / {entry['b']:.4g} {entry['unit']} = "
            f"{entry['ratio']:.3f} (target: {entry['target']})",
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
