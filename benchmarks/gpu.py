"""Measure training on an NVIDIA GPU: MFU, tokens a second, memory, and losses at equal steps.

Parts, most important first, until the time budget is spent; each result is written at once:

- `training`: a step of the published music model at several batch sizes, for each encoding with the
  first backend of the causal product, and for an absolute encoding with the others.
- `product`: one layer's FAVOR+ by the fused kernel, in torch and by flash-linear-attention, and
  softmax attention.
- `published`: the published models after equal steps, and their losses by position, up to twice the
  training length. Training goes on where an earlier run of the script has stopped.
- `songs`: a step of a model of songs with a copy head, 12 layers of width 384.

MFU is the model's FLOPs by formula over the peak of the device in bf16. Each run of the script is
added to the results.

    python -m benchmarks.gpu [--seconds 480] [--data pop909 --root FOLDER]
    python -m benchmarks.gpu --parts published --seconds 900  # goes on
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from torch import Tensor
from torch.nn import functional as F

import musicgen
from benchmarks import measure
from benchmarks.training_step import build
from musicgen.attention import FAVOR, AttentionMask, LinearAttention
from musicgen.batches import Batch
from musicgen.cli.build import build_music
from musicgen.files import write_json
from musicgen.models import Transformer
from musicgen.package_data import CONF
from musicgen.position import LayerCode
from musicgen.random import NoiseKey
from musicgen.run_folders import LAST
from musicgen.training.monitoring.progress import flops_per_token, peak_flops
from musicgen.training.tasks import LanguageModeling

ENCODINGS = ("absolute", "sine_spe", "conv_spe", "absolute_decay")
PUBLISHED = ("ape", "sine_spe", "sine_spe_ungated", "conv_spe")
SONGS = {"dim": 384, "num_layers": 12, "num_heads": 12, "ff_dim": 1536}


class Budget:
    """The seconds that are left, and the results so far."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.start = args, time.monotonic()
        self.path = measure.RESULTS / f"gpu-{args.device}.json"
        self.earlier = json.loads(self.path.read_text())["runs"] if self.path.exists() else []
        self.rows: list[dict[str, Any]] = []
        self.record = measure.record(__file__, args.device)

    def left(self) -> float:
        return self.args.seconds - (time.monotonic() - self.start)

    def add(self, row: dict[str, Any]) -> None:
        """Print a row, and write all rows."""
        self.rows.append(row)
        print(f"{time.monotonic() - self.start:6.1f} s  {json.dumps(row)}", flush=True)
        run = {**self.record, "rows": self.rows}
        write_json(self.path, {"runs": [*self.earlier, run]})

    def run(self, script: str, *arguments: str) -> None:
        """Run a command of the package; end this script when the time is spent."""
        function = f"from musicgen.cli.commands import {script}; {script}()"
        command = [sys.executable, "-c", function, *arguments]
        try:
            subprocess.run(command, check=True, timeout=max(1, self.left()))
        except subprocess.TimeoutExpired:
            self.stop()

    def stop(self) -> None:
        sys.exit(f"the time budget of {self.args.seconds:g} s is spent; what is there is written")


def training_step(model: Transformer, batch: Batch) -> Callable[[], None]:
    """Return a whole training step: noise, forward, backward, clipping and optimizer."""
    device, task = batch.tokens.device.type, LanguageModeling()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=device == "cuda")
    steps = iter(range(10**9))

    def step() -> None:
        noise = model.draw(NoiseKey((next(steps),)), batch.tokens, batch.positions)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = task.loss(model, batch, noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def measure_step(
    model: Transformer, batch: Batch, args: argparse.Namespace, *, compiled: bool
) -> dict[str, Any]:
    """Return the seconds, tokens a second, MFU and memory of a training step."""
    begin, (rows, length) = time.monotonic(), batch.tokens.shape
    for layer in model.layers if compiled else ():
        layer.compile(backend=args.backend)
    try:
        seconds = timed(training_step(model, batch), args)
    except Exception as error:  # as out of memory, or a backend that is not installed
        return {"error": _short(error)}
    flops, peak = rows * length * flops_per_token(model, length), peak_flops(args.device)
    return {
        **summary(seconds),
        "first_seconds": round(time.monotonic() - begin - sum(seconds) * args.repeats, 1),
        "tokens_per_second": round(rows * length / statistics.median(seconds)),
        "mfu": peak and round(flops / statistics.median(seconds) / peak, 4),
        "gigabytes": measure.peak_gigabytes(args.device),
    }


def training(budget: Budget) -> Iterator[dict[str, Any]]:
    """Yield a row for each batch size, backend and encoding."""
    args, cases = budget.args, []
    for batch in args.batches:
        cases += [(batch, side, args.backends[0], True) for side in ENCODINGS]
        cases += [(batch, "absolute", backend, True) for backend in args.backends[1:]]
    cases += [(args.batches[0], "absolute", args.backends[0], False)]
    for size, side, backend, compiled in cases:
        torch.compiler.reset()
        torch.manual_seed(0)
        model = build(side, args.layers, args.device).train()
        tokens = torch.randint(333, (size, args.length), device=args.device)
        for layer in model.layers:
            layer.attention.backend = backend
        row = {"part": "training", "encoding": side, "batch": size, "backend": backend}
        row |= {"compiled": compiled}
        yield row | measure_step(model, Batch(tokens, tokens), args, compiled=compiled)
        del model, tokens


def songs(budget: Budget) -> Iterator[dict[str, Any]]:
    """Yield a row for each batch size; the batches are of composed songs."""
    args = budget.args
    settings = [f"model.{name}={size}" for name, size in SONGS.items()]
    settings += [
        "experiment=pretrained/songs_small",
        "data=composer",
        "~data.corpora",
        f"loader.length={args.length}",
    ]
    settings += args.settings
    for size in args.batches:
        torch.compiler.reset()
        torch.manual_seed(0)
        with (
            tempfile.TemporaryDirectory() as folder,
            initialize_config_dir(str(CONF), version_base="1.3"),
        ):
            paths = [f"paths.data_dir={folder}", f"loader.batch_size={size}"]
            _, model, data = build_music(compose("train", settings + paths))
            drawn = next(iter(data.train_dataloader()))
        model = model.to(args.device).train()
        batch = Batch(*(x if x is None else x.to(args.device) for x in drawn))
        row = {"part": "songs", "batch": size, "compiled": True}
        yield row | measure_step(model, batch, args, compiled=True)
        del model, batch


def published(budget: Budget) -> Iterator[dict[str, Any]]:
    """Yield the losses of each published model after --steps steps, by ranges of positions."""
    args = budget.args
    settings = [f"data={args.data}", f"trainer={'gpu' if args.device == 'cuda' else 'cpu'}"]
    settings += [f"data.root={args.root}"] if args.root else []
    settings += [f"trainer.max_steps={args.steps}", *args.settings]
    for name in PUBLISHED:
        folder = (args.runs / name).resolve()
        checkpoint = folder / LAST
        if not checkpoint.is_file():
            experiment = f"experiment=spe2021/pop_piano_{name}"
            budget.run("train", experiment, *settings, f"hydra.run.dir={folder}")
        elif musicgen.load(checkpoint).content.steps < args.steps:
            budget.run("train", f"resume={folder}", *settings)
        measures = ["metrics=position_loss", "metric.position_loss.max_factor=2", "split=val"]
        out = folder / "position_loss"
        pieces = f"max_pieces={args.max_pieces}"
        budget.run("evaluate", str(checkpoint), *measures, pieces, f"out={out}")
        (run,) = json.loads((out / "position_loss.json").read_text())["runs"]
        losses = {row["part"]: row["mean"] for row in run["rows"]}
        yield {"part": "published", "encoding": name, "steps": args.steps, "losses": losses}


def product(budget: Budget) -> Iterator[dict[str, Any]]:
    """Yield the seconds of forward and backward of one layer's attention."""
    args = budget.args
    for length in args.lengths:
        batch = max(1, args.product_tokens // length)
        inputs = torch.randn(3, batch, length, 8, 64, device=args.device).bfloat16()
        tokens_first = [x.requires_grad_() for x in inputs]
        heads_first = [x.requires_grad_() for x in inputs.transpose(2, 3).contiguous()]
        forms: dict[str, Any] = {
            "triton": _attention("triton", args.device),
            "ours, compiled": torch.compile(_attention("auto", args.device), backend=args.backend),
            "fla": _attention("fla", args.device),
            "ours": _attention("auto", args.device),
        }
        for name, form in forms.items():
            row = {"part": "product", "form": name, "batch": batch, "length": length}
            try:
                seconds = timed(partial(_forward_backward, form, tokens_first), args)
            except Exception as error:
                yield row | {"error": _short(error)}
                continue
            yield row | summary(seconds)
        softmax = partial(F.scaled_dot_product_attention, is_causal=True)
        seconds = timed(partial(_forward_backward, softmax, heads_first), args)
        yield {"part": "product", "form": "softmax", "batch": batch, "length": length} | summary(
            seconds
        )


def _attention(backend: str, device: str) -> Callable[..., Tensor]:
    """Return FAVOR+ of a layer of the published size."""
    attention = LinearAttention(64, 64**-0.5, 8, feature_map=FAVOR, backend=backend).to(device)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            return attention(q, k, v, LayerCode(), AttentionMask(causal=True))[0]

    return attend


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]


def _forward_backward(form: Callable[..., Tensor], inputs: Any) -> None:
    out = form(*inputs)
    torch.autograd.grad(out.float().sum(), inputs)


def timed(run: Callable[[], None], args: argparse.Namespace) -> list[float]:
    """Return the seconds of each counted run, after warm-ups."""
    for _ in range(3):
        run()
    measure.synchronise(args.device)
    if args.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(args.rounds):
        start = time.perf_counter()
        for _ in range(args.repeats):
            run()
        measure.synchronise(args.device)
        seconds.append((time.perf_counter() - start) / args.repeats)
    return seconds


def summary(seconds: list[float]) -> dict[str, float]:
    """Return the median and range of seconds."""
    return {
        "seconds": statistics.median(seconds),
        "lowest": min(seconds),
        "highest": max(seconds),
    }


PARTS = {"training": training, "product": product, "published": published, "songs": songs}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--parts", nargs="+", default=[*PARTS], choices=PARTS)
    parser.add_argument("--seconds", type=float, default=480, help="begin no measurement later")
    parser.add_argument("--batches", nargs="+", type=int, default=[32, 4, 8])
    parser.add_argument("--backends", nargs="+", default=["triton", "auto"], help="of the product")
    parser.add_argument("--lengths", nargs="+", type=int, default=[2048, 8192, 32768])
    parser.add_argument("--product-tokens", type=int, default=65536)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=4, help="steps in a round")
    parser.add_argument("--backend", default="inductor", help="of torch.compile")
    parser.add_argument("--data", default="composer", help="the corpus of the published models")
    parser.add_argument("--root", default="", help="its folder")
    parser.add_argument("--steps", type=int, default=2000, help="of the published models")
    parser.add_argument("--max-pieces", type=int, default=16, help="of their validation")
    parser.add_argument("--runs", type=Path, default=Path("outputs/gpu"), help="their folder")
    parser.add_argument("--settings", nargs="*", default=[], help="of train.py, for both models")
    return parser.parse_args()


def main() -> None:
    torch.set_float32_matmul_precision("high")
    budget = Budget(parse_arguments())
    for part in budget.args.parts:
        for row in PARTS[part](budget):
            budget.add(row)
            if budget.left() < 0:
                budget.stop()


if __name__ == "__main__":
    main()
