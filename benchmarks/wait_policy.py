"""What OpenMP's waiting threads cost, on a free and on a busy machine, by policy and threads.

Waiting threads spin for GOMP_SPINCOUNT rounds (300,000 in libgomp), then sleep;
OMP_WAIT_POLICY=passive lets them sleep at once. Sides take turns in processes of their own, alone
and beside busy loops. Alone, they have real-time priority where the system permits it (root, on
Linux), so that other programs do not disturb them. The table of docs/benchmarks.md is written anew.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from benchmarks import measure, tables
from musicgen.attention import FAVOR, LinearAttention
from musicgen.generation.engines import Engine, make_engine
from musicgen.models import Transformer
from musicgen.position import SineSPE
from musicgen.random import NoiseKey

SIZES = {
    "small": {"dim": 128, "num_layers": 4, "num_heads": 4, "ff_dim": 512},
    "published": {"dim": 512, "num_layers": 24, "num_heads": 8, "ff_dim": 2048},
}
BATCH = {"small": (4, 256), "published": (1, 256)}
DECODED_ROWS = (1, 16)
NUM_STEPS = 8  # of decoding, timed together
NOISE = NoiseKey((1,))
THREADS = os.cpu_count() or 1
SIDES = {  # threads, environment
    "spin": (THREADS, {}),
    "spin 20,000": (THREADS, {"GOMP_SPINCOUNT": "20000"}),
    "spin 2,000": (THREADS, {"GOMP_SPINCOUNT": "2000"}),
    "sleep": (THREADS, {"OMP_WAIT_POLICY": "passive"}),
    "one thread": (1, {}),
}
VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def measure_side(name: str, size: str, repeats: int, loops: int) -> dict[str, float]:
    """Return the median seconds of a decoding step, by rows, and of a training step."""
    if loops == 0:
        with contextlib.suppress(AttributeError, PermissionError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    torch.set_num_threads(SIDES[name][0])
    torch.manual_seed(0)
    attention = partial(LinearAttention, feature_map=FAVOR)
    model = Transformer(333, **SIZES[size], position=SineSPE, attention=attention, dropout=0.0)
    engine = make_engine(model.eval(), NOISE, engine="eager")
    found = {}
    for rows in DECODED_ROWS:
        times = measure.seconds(partial(decode, engine, rows), repeats)
        found[f"decoding step of {rows}"] = statistics.median(times) / NUM_STEPS
    tokens = torch.randint(333, BATCH[size])
    times = measure.seconds(partial(train, model.train(), tokens), max(2, repeats // 2))
    return {**found, "training step": statistics.median(times)}


@torch.inference_mode()
def decode(engine: Engine, rows: int) -> None:
    """Decode a few tokens after a prompt of one."""
    token = torch.zeros(rows).long()
    _, state = engine.prefill(token[:, None], torch.zeros(1, 1, 1).long())
    for _ in range(NUM_STEPS):
        logits, state = engine.step(token, state.length[:, None], state)
        token = logits.argmax(-1)


def train(model: Transformer, tokens: torch.Tensor) -> None:
    """Run forward and backward."""
    logits = model(tokens, noise=NOISE)
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()


@contextlib.contextmanager
def busy(loops: int) -> Iterator[None]:
    """Run other busy processes."""
    processes = [subprocess.Popen([sys.executable, "-c", "while 1: 0"]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def compare(args: argparse.Namespace, size: str, loops: int, rounds: int) -> list[dict[str, Any]]:
    """Return rows that compare each side with spinning threads."""
    options = argparse.Namespace(**{**vars(args), "size": size, "loops": loops})
    times: dict[tuple[str, str], list[float]] = {}
    with busy(loops):
        for _ in range(rounds):
            for name, (_, environment) in SIDES.items():
                for variable in VARIABLES:
                    os.environ.pop(variable, None)
                os.environ.update(environment)
                for what, seconds in measure.side(__file__, name, options).items():
                    times.setdefault((what, name), []).append(seconds)
    where = f"beside {loops} busy loops" if loops else "alone"
    return [
        measure.row(
            f"{what}, {size}, {where}: {name} / spin",
            statistics.median(seconds),
            statistics.median(times[what, "spin"]),
            "s",
            "—" if loops else "≤ 1.03",
        )
        for (what, name), seconds in times.items()
        if name != "spin"
    ]


def main() -> None:
    args = measure.arguments(__doc__, size="small", repeats=6, rounds=3, loops=2, sizes="all")
    if args.side:
        print(json.dumps(measure_side(args.side, args.size, args.repeats, args.loops)))
        return
    sizes = list(SIZES) if args.sizes == "all" else args.sizes.split(",")
    rows = [row for size in sizes for row in compare(args, size, 0, args.rounds)]
    if args.loops:  # of the small model only: spinning threads may take minutes here
        rows += compare(args, "small", args.loops, args.rounds)
    measure.save_results(__file__, rows, args)
    tables.main()


if __name__ == "__main__":
    main()
