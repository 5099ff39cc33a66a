"""Compare a training step with each option of the model, at the size of the races.

CPU time and memory of FAVOR+ with 64 features, beside the same model with learned decay. One of
`cuda` is wall time.
"""

from __future__ import annotations

import json
import time
from functools import partial
from typing import Any

import torch

from benchmarks import measure
from benchmarks.training_step import step
from musicgen.attention import FAVOR, LinearAttention
from musicgen.models import Transformer
from musicgen.position import NoPosition

OPTIONS: dict[str, dict[str, Any]] = {
    "no decay": {"decay": "none"},
    "decay=learned": {},
    "decay=gated": {"decay": "gated"},
    "short_conv=4": {"short_conv": 4},
    "output_gate": {"output_gate": True},
    "qk_norm": {"qk_norm": True},
    "tie_embeddings": {"tie_embeddings": True},
    "decay=gated, short_conv=4": {"decay": "gated", "short_conv": 4},
}
BASE = "decay=learned"


def build(side: str, layers: int, device: str) -> Transformer:
    """Build the model with this side's options, in training mode."""
    options = dict(OPTIONS[side])
    decay = options.pop("decay", "learned")
    attention = partial(LinearAttention, feature_map=partial(FAVOR, num_features=64), decay=decay)
    sizes = {"dim": 192, "num_layers": layers, "num_heads": 6, "ff_dim": 768, "norm_first": True}
    model = Transformer(333, **sizes, position=NoPosition, attention=attention, **options)
    return model.to(device)


def main() -> None:
    args = measure.arguments(__doc__, layers=4, length=512, batch=8, rounds=6)
    tokens = torch.randint(333, (args.batch, args.length), device=args.device)
    if args.side:
        step(build(args.side, args.layers, args.device), tokens, 0)
        print(json.dumps({"gigabytes": measure.peak_gigabytes(args.device)}))
        return
    memory = measure.memory(__file__, OPTIONS, args)
    models = {side: build(side, args.layers, args.device) for side in OPTIONS}
    runs = {side: partial(step, model, tokens, 0) for side, model in models.items()}
    clock = time.process_time if args.device == "cpu" else time.perf_counter
    times = measure.interleaved(runs, args.rounds, args.device, clock)
    rows = []
    for side in OPTIONS:
        if side != BASE:
            rows += measure.time_and_memory(f"{side} / {BASE}", (side, BASE), times, memory)
    measure.save_results(__file__, rows, args)


if __name__ == "__main__":
    main()
