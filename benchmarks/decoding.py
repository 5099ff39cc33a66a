"""Measure whether decoding with the published music model is constant in time and memory.

A step is also compared with the time that reading the weights once takes, its lower bound.
"""

import json
import statistics
import time
from typing import Any

import torch

from benchmarks import measure
from benchmarks.training_step import build
from musicgen.generation.engines import Engine, make_engine
from musicgen.models import ModelState
from musicgen.random import NoiseKey

NOISE = NoiseKey((1,))
PUBLISHED = "published_sine_spe"
PROMPT = 32


def steps(engine: Engine, state: Any, first: int, count: int) -> tuple[Any, list[float]]:
    """Return the state after `count` tokens from the index `first` on, and the seconds of each."""
    device = engine.device.type
    token = torch.zeros(1, dtype=torch.long, device=device)
    times = []
    for index in range(first, first + count):
        position = torch.full((1, 1), index, device=device)
        measure.synchronise(device)
        start = time.perf_counter()
        logits, state = engine.step(token, position, state)
        token = logits.argmax(-1)
        measure.synchronise(device)
        times.append(time.perf_counter() - start)
    return state, times


@torch.inference_mode()
def passes(side: str, layers: int, device: str) -> dict[str, float]:
    """Return the seconds of 2,048 tokens without a state, where each token needs a full pass.

    A pass covers all earlier tokens. As its time is linear in the length, the total is 2,048 times
    the mean of a short and a long pass.
    """
    model = build(side, layers, device).eval()
    seconds = []
    for n in (512, 1536):
        tokens = torch.randint(333, (1, n), device=device)
        seconds.append(min(measure.seconds(lambda tokens=tokens: model(tokens), 1, device)))
    return {"2048 passes": 2048 * sum(seconds) / len(seconds)}


@torch.inference_mode()
def run(side: str, layers: int, length: int, device: str) -> dict[str, Any]:
    torch.manual_seed(0)
    model = build(side, layers, device).eval()
    prompt = torch.randint(333, (1, PROMPT), device=device)
    _, prefilled = model.forward_with_state(prompt, noise=NOISE)

    def begin() -> ModelState:
        return prefilled.select(torch.zeros(1, dtype=torch.long, device=device))

    # Reading the weights once: multiply each matrix of the layers and the head by a vector.
    weights = [m.weight for m in model.modules() if isinstance(m, torch.nn.Linear)]
    vectors = {w.shape[1]: torch.randn(w.shape[1], device=device) for w in weights}

    def read() -> float:
        again = measure.seconds(lambda: [w @ vectors[w.shape[1]] for w in weights], 10, device)
        return statistics.median(again)

    eager = make_engine(model, NOISE, engine="eager")
    fast = make_engine(model, NOISE, engine="onnx" if device == "cpu" else "auto")
    steps(eager, begin(), PROMPT, 10)
    steps(fast, begin(), PROMPT, 10)
    found: dict[str, list[float]] = {"read": [], "eager": []}
    for _ in range(5):  # alternate, because the machine's speed drifts
        found["read"].append(read())
        found["eager"].append(statistics.median(steps(eager, begin(), PROMPT, 20)[1]))

    state, times = steps(fast, begin(), PROMPT, 64)
    memory = measure.peak_gigabytes(device)
    times += steps(fast, state, PROMPT + 64, length - 64)[1]
    grown = measure.peak_gigabytes(device)

    return {
        **found,
        "at 64": statistics.median(times[64 - PROMPT : 128 - PROMPT]),
        "far": statistics.median(times[far(length) - 32 - PROMPT : far(length) + 32 - PROMPT]),
        "first 1000": statistics.median(times[:1000]),
        "last 1000": statistics.median(times[-1000:]),
        "2048 tokens": 2048 * statistics.mean(times[:2048]),
        **passes(side, layers, device),
        "memory": memory,
        "grown memory": grown,
    }


def far(length: int) -> int:
    """Return the index of the token whose time is compared with that of the 64th."""
    return min(4096, length - 32)


def main() -> None:
    args = measure.arguments(__doc__, device="cpu", layers=24, length=8192)
    if args.side:
        if args.side == PUBLISHED:
            print(json.dumps(passes(args.side, args.layers, args.device)))
        else:
            print(json.dumps(run(args.side, args.layers, args.length, args.device)))
        return
    side: dict[str, Any] = measure.side(__file__, "sine_spe", args)
    side["published passes"] = measure.side(__file__, PUBLISHED, args)["2048 passes"]
    last = args.length
    what = "eager step / reading the weights"
    rows = [measure.compare(what, side["eager"], side["read"], "s a token", "≤ 1.4")]
    rows += [
        measure.row(what, side[a], side[b], unit, target)
        for what, a, b, unit, target in (
            (f"at {far(last)} / at 64", "far", "at 64", "s a token", "≤ 1.05"),
            (f"last / first 1000 of {last}", "last 1000", "first 1000", "s a token", "≤ 1.05"),
            (
                "re-running the prefix as published / 2048 tokens",
                "published passes",
                "2048 tokens",
                "s",
                "≥ 100",
            ),
            (
                "re-running the prefix with our forward / 2048 tokens",
                "2048 passes",
                "2048 tokens",
                "s",
                "—",
            ),
            (f"peak memory at {last} / at 96", "grown memory", "memory", "GB", "1"),
        )
    ]
    measure.save_results(__file__, rows, args.device)


if __name__ == "__main__":
    main()
