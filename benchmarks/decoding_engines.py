"""What packing and compiling gain: CPU seconds of a decoding step, by engine and batch size.

Sides take turns in one process, on one thread; CPU time, as other programs do not change it much.
"""

from __future__ import annotations

import statistics
import time

import torch

from benchmarks import measure
from benchmarks.training_step import build
from musicgen.generation.engines.packed_cpu import compile_layers, pack_linear_layers
from musicgen.models import ModelState, Transformer
from musicgen.random import NoiseKey

NOISE = NoiseKey((1,))


def run(model: Transformer, prefilled: ModelState, rows: int, count: int) -> float:
    """Median CPU seconds of a step."""
    state = prefilled.select(torch.zeros(rows, dtype=torch.long))
    token = torch.zeros(rows, 1, dtype=torch.long)
    times = []
    for _ in range(count):
        start = time.process_time()
        logits, state = model.forward_with_state(token, noise=NOISE, state=state)
        token = logits.argmax(-1)
        times.append(time.process_time() - start)
    return statistics.median(times)


@torch.inference_mode()
def main() -> None:
    args = measure.arguments(__doc__, layers=24, rounds=5)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = build("sine_spe", args.layers, "cpu").eval()
    _, prefilled = model.forward_with_state(torch.randint(333, (1, 32)), noise=NOISE)
    packed = pack_linear_layers(model)
    sides = {
        "eager": model,
        "packed": packed,
        "compiled": compile_layers(model),
        "packed, compiled": compile_layers(packed),
    }
    rows = []
    for batch in (1, 4):
        for side in sides.values():
            run(side, prefilled, batch, 3)
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(args.rounds):
            for name, side in sides.items():
                seconds[name].append(run(side, prefilled, batch, 12))
        for a, b, to_reach in (
            ("eager", "packed", "—"),
            ("compiled", "packed, compiled", "> 1.2 at 4 rows"),
            ("packed", "packed, compiled", "—"),
        ):
            rows.append(
                measure.compare(
                    f"{a} / {b}, batch {batch}", seconds[a], seconds[b], "CPU s a step", to_reach
                )
            )
    measure.save_results(__file__, rows, args)


if __name__ == "__main__":
    main()
