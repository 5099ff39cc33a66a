"""Measure training of the published music model on an NVIDIA GPU: MFU, tokens a second, memory.

Parts, most important first, until the time budget is spent; each result is written at once:

- `training`: a step of the 24 layers at several batch sizes, for each encoding.
- `product`: the causal product, batched and by flash-linear-attention, and softmax attention.

MFU is the model's FLOPs by formula over the peak of the device in bf16.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks import measure
from benchmarks.training_step import build
from musicgen.attention import causal_linear_attention
from musicgen.models import Transformer
from musicgen.random import NoiseKey
from musicgen.training.flops import model_flops, peak_flops

ENCODINGS = ("absolute", "sine_spe", "conv_spe", "absolute_decay")


class Budget:
    """The seconds that are left, and the results so far."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.start, self.rows = args, time.monotonic(), []

    def left(self) -> float:
        return self.args.seconds - (time.monotonic() - self.start)

    def add(self, row: dict[str, Any]) -> None:
        """Print a row, and write all rows."""
        self.rows.append(row)
        print(f"{time.monotonic() - self.start:6.1f} s  {json.dumps(row)}", flush=True)
        measure.write_results(__file__, {"rows": self.rows}, self.args)


def training_step(model: Transformer, tokens: Tensor) -> Callable[[], None]:
    """Return a whole training step: noise, forward, backward, clipping and optimizer."""
    fused = tokens.device.type == "cuda"
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=fused)
    steps = iter(range(10**9))

    def step() -> None:
        noise = model.draw(NoiseKey((next(steps),)), tokens)
        with torch.autocast(tokens.device.type, torch.bfloat16):
            logits = model(tokens, noise=noise)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def training(budget: Budget) -> Iterator[dict[str, Any]]:
    """Yield a row for each encoding, batch size and mode."""
    args = budget.args
    cases = [(batch, side, True) for batch in args.batches for side in ENCODINGS]
    cases += [(args.batches[0], "absolute", False)]
    for batch, side, compiled in cases:
        torch.compiler.reset()
        torch.manual_seed(0)
        model = build(side, args.layers, args.device).train()
        tokens = torch.randint(333, (batch, args.length), device=args.device)
        begin = time.monotonic()
        if compiled:
            for layer in model.layers:
                layer.compile()
        row = {"part": "training", "encoding": side, "batch": batch, "compiled": compiled}
        try:
            seconds = timed(training_step(model, tokens), args)
        except torch.OutOfMemoryError:
            yield row | {"error": "out of memory"}
            continue
        flops, peak = model_flops(model, batch, args.length), peak_flops(args.device)
        yield row | {
            **summary(seconds),
            "first_seconds": round(time.monotonic() - begin - sum(seconds), 1),
            "tokens_per_second": round(batch * args.length / statistics.median(seconds)),
            "mfu": peak and round(flops / statistics.median(seconds) / peak, 4),
            "gigabytes": measure.peak_gigabytes(args.device),
        }
        del model, tokens


def product(budget: Budget) -> Iterator[dict[str, Any]]:
    """Yield the seconds of forward and backward of one layer's attention."""
    args = budget.args
    for length in args.lengths:
        batch = max(1, args.product_tokens // length)
        shape = (batch, length, 8, 64)
        features = torch.rand(2, batch, length, 8, 128, device=args.device)
        q, k = (x.bfloat16().requires_grad_() for x in features)
        v = torch.randn(shape, device=args.device, dtype=torch.bfloat16, requires_grad=True)
        narrow = torch.randn(3, batch, 8, length, 64, device=args.device).bfloat16()
        heads_first = [x.requires_grad_() for x in narrow]
        forms: dict[str, Any] = {
            "batched, compiled": torch.compile(partial(_causal, backend="batched")),
            "fla": partial(_causal, backend="fla"),
            "batched": partial(_causal, backend="batched"),
        }
        for name, form in forms.items():
            row = {"part": "product", "form": name, "batch": batch, "length": length}
            try:
                seconds = timed(partial(_forward_backward, form, (q, k, v)), args)
            except Exception as error:
                yield row | {"error": f"{type(error).__name__}: {error}"[:300]}
                continue
            yield row | summary(seconds)
        softmax = partial(F.scaled_dot_product_attention, is_causal=True)
        seconds = timed(partial(_forward_backward, softmax, heads_first), args)
        yield {"part": "product", "form": "softmax", "batch": batch, "length": length} | summary(
            seconds
        )


def _causal(q: Tensor, k: Tensor, v: Tensor, backend: str) -> Tensor:
    with torch.autocast(q.device.type, torch.bfloat16):
        return causal_linear_attention(q, k, v, backend=backend)[0]


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


PARTS = {"training": training, "product": product}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--parts", nargs="+", default=[*PARTS], choices=PARTS)
    parser.add_argument("--seconds", type=float, default=480, help="begin no measurement later")
    parser.add_argument("--batches", nargs="+", type=int, default=[32, 8, 1])
    parser.add_argument("--lengths", nargs="+", type=int, default=[2048, 8192, 32768])
    parser.add_argument("--product-tokens", type=int, default=65536)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=4, help="steps in a round")
    torch.set_float32_matmul_precision("high")
    budget = Budget(parser.parse_args())
    for part in budget.args.parts:
        for row in PARTS[part](budget):
            budget.add(row)
            if budget.left() < 0:
                sys.exit(f"the time budget of {budget.args.seconds:g} s is spent")


if __name__ == "__main__":
    main()
