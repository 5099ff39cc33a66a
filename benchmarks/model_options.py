"""Compare a training step with each option of the model, at the size of the races.

CPU time and memory of FAVOR+ with 64 features, beside the same model with learned decay. One of
`cuda` is wall time.
"""

from __future__ import annotations

from collections.abc import Callable
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
    "decay=head": {},
    "decay=token": {"decay": "token"},
    "short_conv=4": {"short_conv": 4},
    "qk_norm": {"qk_norm": True},
    "tie_embeddings": {"tie_embeddings": True},
    "decay=token, short_conv=4": {"decay": "token", "short_conv": 4},
}
BASE = "decay=head"


def build(side: str, layers: int, device: str) -> Transformer:
    """Build the model with this side's options, in training mode."""
    options = dict(OPTIONS[side])
    decay = options.pop("decay", "head")
    attention = partial(LinearAttention, feature_map=partial(FAVOR, num_features=64), decay=decay)
    sizes = {"dim": 192, "num_layers": layers, "num_heads": 6, "ff_dim": 768, "norm_first": True}
    model = Transformer(333, **sizes, position=NoPosition, attention=attention, **options)
    return model.to(device)


def main() -> None:
    args = measure.arguments(__doc__, layers=4, length=512, batch=8, rounds=6)

    def make_step(side: str) -> Callable[[], None]:
        tokens = torch.randint(333, (args.batch, args.length), device=args.device)
        return partial(step, build(side, args.layers, args.device), tokens, 0)

    builders = {side: partial(make_step, side) for side in OPTIONS}
    clock = measure.cpu_clock(args.device)
    times, memory = measure.steps(__file__, builders, args, clock)
    rows = []
    for side in OPTIONS:
        if side != BASE:
            rows += measure.time_and_memory(f"{side} / {BASE}", (side, BASE), times, memory)
    measure.save_results(__file__, rows, args)


if __name__ == "__main__":
    main()
