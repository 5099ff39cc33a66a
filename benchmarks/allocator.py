"""What the allocator of the C library costs a CPU, by the environment variables that change it.

Blocks of more than 32 MiB, and what is free at the heap's end, go back to the system, and come as
new pages of 4 KiB, each a fault. Sides take turns in processes of their own; the figures are CPU
time, the system's included. `--preload FILE` adds another allocator, such as tcmalloc.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from functools import partial

import torch

from benchmarks import measure
from benchmarks.causal_product import make_step
from benchmarks.training_step import step
from musicgen.attention import FAVOR, LinearAttention
from musicgen.models import Transformer
from musicgen.position import SineSPE

SIDES = {
    "as it comes": {},
    "THP_MEM_ALLOC_ENABLE=1": {"THP_MEM_ALLOC_ENABLE": "1"},
    "glibc.malloc.hugetlb=1": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
    "MALLOC_TOP_PAD_=256 MiB": {"MALLOC_TOP_PAD_": str(2**28)},
    "preload": {},
}
WORK = ("product of 8,192", "step of the small model, 8 × 512")


def measure_side(repeats: int) -> dict[str, float]:
    """Return the median CPU seconds of forward and backward."""
    attention = partial(LinearAttention, feature_map=FAVOR)
    sizes = {"dim": 128, "num_layers": 4, "num_heads": 4, "ff_dim": 512}
    small = Transformer(333, **sizes, position=SineSPE, attention=attention)
    runs = (
        make_step("ours", 8192, "cpu"),
        partial(step, small, torch.randint(333, (8, 512)), 0),
    )
    found = {}
    for name, run in zip(WORK, runs, strict=True):
        times = measure.interleaved({name: run}, repeats, clock=time.process_time)[name]
        found[name] = statistics.median(times)
    return {**found, "gigabytes": measure.peak_gigabytes()}


def main() -> None:
    args = measure.arguments(__doc__, repeats=2, rounds=4, preload="")
    if args.side:
        print(json.dumps(measure_side(args.repeats)))
        return
    sides = {name: environment for name, environment in SIDES.items() if name != "preload"}
    if args.preload:
        sides["preload"] = {"LD_PRELOAD": args.preload}
    found: dict[str, dict[str, list[float]]] = {name: {} for name in sides}
    for _ in range(args.rounds):
        for name, environment in sides.items():
            figures = measured_with(environment, name, args)
            print(name, figures, flush=True)
            for what, figure in figures.items():
                found[name].setdefault(what, []).append(figure)
    rows = []
    base = found.pop("as it comes")
    for name, figures in found.items():
        for what, values in figures.items():
            unit = "GB" if what == "gigabytes" else "s"
            rows.append(measure.compare(f"{what}: {name}", values, base[what], unit, "—"))
    args.preload = os.path.basename(args.preload)  # noqa: PTH119
    measure.save_results(__file__, rows, args)


def measured_with(
    environment: dict[str, str], name: str, args: argparse.Namespace
) -> dict[str, float]:
    """Measure a side in a process with these environment variables."""
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        return measure.side(__file__, name, args)
    finally:
        os.environ.clear()
        os.environ.update(before)


if __name__ == "__main__":
    main()
