"""Check and measure a GPU in parts, each saved at once: correctness, speed, the paper's models.

    make gpu-check MINUTES=8            # or DEVICE=cpu, at a tiny size, to try it
    python -m benchmarks.gpu_check --minutes 8 [--root POP909] [--device cpu] [--again]

A part that has results is left out, one that failed is repeated, and a training goes on where it
stopped: call it again until nothing is left. Results lie in results/gpu_check-DEVICE/, and what
became of each part in parts.json. The models are those of Liutkus et al. 2021 (pop piano), in bf16,
on POP909, or without `--root` on composed pieces; `evaluate.py` measures their speed and losses.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks import measure
from musicgen.files import write_text
from musicgen.run_folders import LAST

MODELS = ("sine_spe", "ape", "conv_spe", "sine_spe_ungated", "conv_spe_ungated")
# What a CPU can do in seconds, to try the parts.
TINY = ("--layers=2", "--length=128", "--rounds=1")
TINY_MODEL = (
    *("model.num_layers=2", "model.dim=64", "model.ff_dim=128", "model.num_heads=4"),
    *("loader.length=128", "trainer=cpu", "loader.num_workers=0"),
)
BENCHMARKS = {  # and their options on a CPU
    "training_step": TINY,
    "causal_product": TINY[2:],
    "decoding": (TINY[0], "--length=512"),
    "lrpe": TINY,
    "model_options": TINY,
    "span": TINY[2:],
}
STOPPING = 60  # seconds for a training to write its checkpoint


class Part(NamedTuple):
    """A program of its own.

    Attributes:
        limit: the most seconds that it may take.
        repeat: run it in each call, also if it has results.
    """

    name: str
    command: list[str]
    limit: float
    repeat: bool = False


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
    for part in (*checks(args.device, folder), *models(args, folder)):
        left = end - time.monotonic() - STOPPING
        done = saved(folder).get(part.name, {}).get("status") == "ok"
        if done and not (part.repeat or args.again):
            continue
        if left < 10:
            break
        save(folder, part.name, run(part, min(left, part.limit)))
    for name, outcome in saved(folder).items():
        print(f"{name:24}{outcome}")


def checks(device: str, folder: Path) -> Iterator[Part]:
    """Yield the parts before the models: correctness first."""
    python, on = [sys.executable, "-m"], ["--device", device]
    yield Part("doctor", [*python, "musicgen.doctor", *on, f"--json={folder}/doctor.json"], 300)
    only = ["--only=rope"] if device == "cpu" else []
    yield Part("pair_parity", [*python, "benchmarks.pair_parity", *on, *only], 480)
    for name, tiny in BENCHMARKS.items():
        options = tiny if device == "cpu" else ()
        yield Part(name, [*python, f"benchmarks.{name}", *on, *options], 480)


def models(args: argparse.Namespace, folder: Path) -> Iterator[Part]:
    """Yield the training of each model, from where it stopped, and its evaluation."""
    tiny = args.device == "cpu"
    data = ["data=pop909", f"data.root={args.root}"] if args.root else ["data=composer"]
    for name in MODELS:
        run_folder = Path("outputs") / folder.name / name
        settings = [
            f"experiment=spe2021/pop_piano_{name}",
            *data,
            *(TINY_MODEL if tiny else ("trainer=gpu", "trainer.precision=bf16-mixed")),
            f"trainer.val_check_interval={20 if tiny else 200}",
            "+trainer.limit_val_batches=8",
            f"hydra.run.dir={run_folder}",
        ]
        if (run_folder / LAST).is_file():
            settings = [f"resume={run_folder}"]
        yield Part(f"train {name}", [sys.executable, "train.py", *settings], 20 if tiny else 240)
        measured = [
            f"checkpoint={run_folder / LAST}",
            "metrics=[position_loss,resources]",
            "max_pieces=16",
            f"out={folder / name}",
        ]
        yield Part(f"evaluate {name}", [sys.executable, "evaluate.py", *measured], 120, True)


def run(part: Part, limit: float) -> dict[str, Any]:
    """Run a part, for the limit at most; return its status and time."""
    print(f"== {part.name}, at most {limit:.0f} s", flush=True)
    start = time.monotonic()
    process = subprocess.Popen(part.command, start_new_session=True)
    try:
        code = process.wait(limit)
        status = "ok" if code == 0 else f"failed with status {code}"
    except subprocess.TimeoutExpired:
        status = "stopped"
        process.send_signal(signal.SIGTERM)  # a training finishes its step and writes last.ckpt
        try:
            process.wait(STOPPING)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return {"status": status, "seconds": round(time.monotonic() - start)}


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
