"""Compare a training step of a 6-layer Performer with performer-pytorch's."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import torch

from benchmarks import measure
from benchmarks.training_step import build, step

SIDES = ("ours", "performer_pytorch")


def build_side(side: str, length: int, device: str) -> Any:
    """Return a model of this side: tokens to logits."""
    torch.manual_seed(0)
    if side == "ours":
        return build("absolute", 6, device)
    from performer_pytorch import PerformerLM

    theirs = PerformerLM(
        num_tokens=333,
        max_seq_len=length,
        dim=512,
        depth=6,
        heads=8,
        dim_head=64,
        nb_features=128,
        causal=True,
        ff_dropout=0.1,
        attn_dropout=0.1,
        rotary_position_emb=False,
    ).to(device)
    return lambda tokens, **_: theirs(tokens)


def main() -> None:
    args = measure.arguments(__doc__, length=2048, rounds=4)
    tokens = torch.randint(333, (1, args.length), device=args.device)
    if args.side:
        step(build_side(args.side, args.length, args.device), tokens, 0)
        print(json.dumps({"gigabytes": measure.peak_gigabytes(args.device)}))
        return
    memory = measure.memory(__file__, SIDES, args)
    runs = {
        side: partial(step, build_side(side, args.length, args.device), tokens, 0) for side in SIDES
    }
    times = measure.interleaved(runs, args.rounds, args.device)
    ours, theirs = SIDES
    rows = measure.time_and_memory(
        "performer-pytorch / ours", (theirs, ours), times, memory, ("≥ 4", "—")
    )
    measure.save_results(__file__, rows, args)


if __name__ == "__main__":
    main()
