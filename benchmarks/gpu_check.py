"""Check and measure a GPU in parts, each saved at once: correctness, speed, the paper's models.

    make gpu-check MINUTES=8            # or DEVICE=cpu, at a tiny size, to try it
    python -m benchmarks.gpu_check --minutes 8 [--root POP909] [--device cpu] [--again]

A part that has results is left out, one that failed is repeated, and a training goes on where it
stopped: call it again until nothing is left. Results lie in results/gpu_check-DEVICE/, and what
became of each part in parts.json. The models are those of Liutkus et al. 2021 (pop piano), in bf16,
on POP909, or without `--root` on composed pieces.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks import measure
from musicgen.files import write_text

MODELS = ("sine_spe", "ape", "conv_spe", "sine_spe_ungated", "conv_spe_ungated")
# What a CPU can do in seconds, to try the parts.
TINY = ("--layers=2", "--length=128", "--rounds=1")
TINY_MODEL = (
    *("model.num_layers=2", "model.dim=64", "model.ff_dim=128", "model.num_heads=4"),
    *("data.length=128", "trainer=cpu", "data.num_workers=0"),
)
_STOPPING = 60  # seconds for a training to write its checkpoint
_PER_MODEL = 240  # seconds of training, at most, before the next model's turn


class Part(NamedTuple):
    """A program of its own, and the most seconds that it may take."""

    name: str
    command: list[str]
    limit: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--root", help="POP909's folder")
    parser.add_argument("--again", action="store_true", help="repeat parts that have results")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no NVIDIA GPU; --device cpu tries the parts at a tiny size")
    end = time.monotonic() + 60 * args.minutes
    folder = measure.RESULTS / f"gpu_check-{args.device}"
    os.environ["BENCHMARK_RESULTS"] = str(folder)
    for part in parts(args.device, folder):
        left = end - time.monotonic() - _STOPPING
        status = saved(folder).get(part.name, {}).get("status", "failed")
        if not status.startswith("failed") and not args.again:
            continue
        if left < 10:
            break
        outcome = run(part, min(left, part.limit))
        if outcome["status"] == "stopped" and left < part.limit:
            break  # it has all its time in the next call
        save(folder, part.name, outcome)
    while (left := end - time.monotonic() - _STOPPING) > 30:
        for name in MODELS:
            train(name, args, folder, min(_PER_MODEL, left / len(MODELS)))
    for name, outcome in saved(folder).items():
        print(f"{name:24}{outcome}")


def parts(device: str, folder: Path) -> Iterator[Part]:
    """Yield the parts before the models: correctness first."""
    python, on = [sys.executable, "-m"], ["--device", device]
    yield Part("doctor", [*python, "musicgen.doctor", *on, f"--json={folder}/doctor.json"], 300)
    only = ["--only=rope"] if device == "cpu" else []
    yield Part("pair_parity", [*python, "benchmarks.pair_parity", *on, *only], 480)
    sizes = {
        "training_step": TINY,
        "causal_product": TINY[2:],
        "decoding": (TINY[0], "--length=512"),
        "lrpe": TINY,
        "model_options": TINY,
        "span": TINY[2:],
    }
    for name, tiny in sizes.items():
        yield Part(
            name, [*python, f"benchmarks.{name}", *on, *(tiny if device == "cpu" else ())], 480
        )


def run(part: Part, limit: float) -> dict[str, Any]:
    """Run a part; return its status and time."""
    print(f"== {part.name}, at most {limit:.0f} s", flush=True)
    start = time.monotonic()
    process = subprocess.Popen(part.command, start_new_session=True)
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        status = "stopped"
    else:
        status = "ok" if code == 0 else f"failed with status {code}"
    finally:
        with contextlib.suppress(ProcessLookupError):  # and the processes that it started
            os.killpg(process.pid, signal.SIGKILL)
    return {"status": status, "seconds": round(time.monotonic() - start)}


def train(name: str, args: argparse.Namespace, folder: Path, limit: float) -> None:
    """Train a model for a time, from where it stopped; save its rate and its losses."""
    print(f"== {name}, {limit:.0f} s", flush=True)
    run_folder = Path("outputs") / folder.name / name
    last = run_folder / "checkpoints" / "last.ckpt"
    command = [sys.executable, "train.py"]
    command += [f"resume={run_folder}"] if last.is_file() else overrides(name, args, run_folder)
    process = subprocess.Popen(command)
    try:
        process.wait(limit)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)  # it finishes its step and writes last.ckpt
        try:
            process.wait(_STOPPING)
        except subprocess.TimeoutExpired:
            process.kill()  # an earlier last.ckpt, if any, stays whole
            process.wait()
    if not last.is_file():
        outcome: dict[str, Any] = {"status": f"failed with status {process.returncode}"}
    else:
        outcome = {"status": "ok", **rates(run_folder, args.device), **losses(last, args.device)}
    save(folder, f"train {name}", outcome)


def overrides(name: str, args: argparse.Namespace, run_folder: Path) -> list[str]:
    """Return the arguments of train.py for a published model."""
    tiny = args.device == "cpu"
    data = ["data=pop909", f"data.root={args.root}"] if args.root else ["data=composer"]
    return [
        f"experiment=spe2021/pop_piano_{name}",
        *data,
        *(TINY_MODEL if tiny else ("trainer=gpu", "trainer.precision=bf16-mixed")),
        f"trainer.val_check_interval={20 if tiny else 200}",
        "trainer.limit_val_batches=8",
        f"hydra.run.dir={run_folder}",
    ]


def rates(run_folder: Path, device: str) -> dict[str, float]:
    """Return steps, tokens a second and, on a GPU, the fraction of its matrix products' rate."""
    with (run_folder / "metrics.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    column = "train/tokens_per_second"
    found = [float(row[column]) for row in rows if row.get(column)]
    rate = statistics.median(found[1:] or found)  # the first one contains compilations
    result = {"steps": max(int(row["step"]) for row in rows) + 1, "tokens/s": round(rate)}
    if device == "cuda":
        from musicgen import load

        model = load(run_folder).model
        # Forward and backward take 6 operations a weight and token, without attention's.
        needed = 6 * sum(p.numel() for p in model.parameters()) * rate
        result["fraction of bf16 matmul"] = round(needed / matmul_rate(), 4)
    return result


def matmul_rate(size: int = 8192, repeats: int = 20) -> float:
    """Return operations a second of a large product in bf16."""
    a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    seconds = measure.seconds(lambda: a @ a, repeats, "cuda")
    return 2 * size**3 / statistics.median(seconds)


def losses(checkpoint: Path, device: str, num_pieces: int = 16) -> dict[str, float]:
    """Return the mean loss of held-out pieces at trained positions, and beyond them to twice."""
    from musicgen import load
    from musicgen.cli.datasets import open_training_data
    from musicgen.metrics import length_summaries

    model = load(checkpoint).to(device)
    data, length = open_training_data(model), model.training_length
    indices = data.split("test")[:num_pieces]
    pieces = [loss for _, loss in measure.piece_losses(model, data, indices, 2 * length, seed=0)]
    parts = length_summaries(pieces, length, (2.0,))
    return {f"loss, {name}": round(part.mean, 4) for name, part in parts.items()}


def saved(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what became of each part."""
    path = folder / "parts.json"
    return json.loads(path.read_text())["parts"] if path.is_file() else {}


def save(folder: Path, name: str, outcome: dict[str, Any]) -> None:
    """Add a part's outcome to parts.json at once."""
    content = {
        "command": "make gpu-check",
        "machine": measure.machine(folder.name.rpartition("-")[2]),
        "parts": saved(folder) | {name: outcome},
    }
    write_text(folder / "parts.json", json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
