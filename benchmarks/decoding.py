"""Decoding with the published music model: flat in time and memory, bound by its weights."""

from __future__ import annotations

import json
import time

import torch

from benchmarks import measure
from benchmarks.training_step import build
from musicgen.models import ModelState, Transformer
from musicgen.position import NoiseKey

NOISE = NoiseKey((1,))


@torch.inference_mode()
def steps(
    model: Transformer, state: ModelState, count: int, device: str
) -> tuple[ModelState, float]:
    """The state after so many tokens, and the median seconds of one."""
    token = torch.zeros(1, 1, dtype=torch.long, device=device)
    times = []
    for _ in range(count):
        measure.synchronise(device)
        start = time.perf_counter()
        logits, state = model(token, noise=NOISE, state=state, return_state=True)
        token = logits.argmax(-1)
        measure.synchronise(device)
        times.append(time.perf_counter() - start)
    return state, sorted(times)[count // 2]


@torch.inference_mode()
def run(side: str, layers: int, length: int, device: str) -> dict[str, float]:
    torch.manual_seed(0)
    model = build(side, layers, device).eval()
    prompt = torch.randint(333, (1, 32), device=device)
    _, state = model(prompt, noise=NOISE, return_state=True)
    state, _ = steps(model, state, 16, device)
    state, early = steps(model, state, 32, device)
    memory = measure.peak_gigabytes(device)
    reached = 32 + 16 + 32
    state, _ = steps(model, state, 4096 - reached - 16, device)
    state, late = steps(model, state, 32, device)
    state, _ = steps(model, state, length - 4096 - 16, device)
    grown = measure.peak_gigabytes(device)

    weights = [p for p in model.parameters() if p.dim() == 2 and p.shape[0] >= 512]
    vector = {w.shape[1]: torch.randn(w.shape[1], device=device) for w in weights}
    read = min(measure.seconds(lambda: [w @ vector[w.shape[1]] for w in weights], 20, device))

    # Without a state, a token takes a pass over all before it: the mean over 2,048 tokens.
    passes = []
    for n in (512, 1536):
        tokens = torch.randint(333, (1, n), device=device)
        again = measure.seconds(lambda tokens=tokens: model(tokens, noise=NOISE), 2, device)
        passes.append(min(again))
    return {
        "early": early,
        "late": late,
        "memory": memory,
        "grown": grown,
        "read": read,
        "prefix": sum(passes) / len(passes),
    }


def main() -> None:
    args = measure.arguments(__doc__, layers=24, length=8192)
    if args.side:
        print(json.dumps(run(args.side, args.layers, args.length, args.device)))
        return
    rows = []
    for name, side in measure.sides(__file__, ["sine_spe", "absolute"], args, rounds=1).items():
        token = "s a token"
        rows += [
            measure.row(f"{name}: at 4096 / at 64", side["late"], side["early"], token, "≤ 1.05"),
            measure.row(
                f"{name}: memory at {args.length} / at 80", side["grown"], side["memory"], "GB", "1"
            ),
            measure.row(
                f"{name}: eager step / reading the weights",
                side["early"],
                side["read"],
                token,
                "≤ 1.4",
            ),
            measure.row(
                f"{name}: re-running the prefix / step",
                side["prefix"],
                side["late"],
                token,
                "≥ 100",
            ),
        ]
    measure.report(__file__, rows, args)


if __name__ == "__main__":
    main()
