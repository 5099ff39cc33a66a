"""Compare a training step of a 6-layer Performer with performer-pytorch's."""

from collections.abc import Callable
from functools import partial

import torch

from benchmarks import measure
from benchmarks.training_step import build, step


def make_step(side: str, length: int, device: str) -> Callable[[], None]:
    """Return a step of this side's model: tokens to logits, and back."""
    torch.manual_seed(0)
    tokens = torch.randint(333, (1, length), device=device)
    if side == "ours":
        return partial(step, build("absolute", 6, device), tokens, 0)
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
    return partial(step, lambda tokens, **_: theirs(tokens), tokens, 0)


def main() -> None:
    args = measure.arguments(__doc__, device="cpu", length=2048, rounds=4)
    sides = ("performer-pytorch", "ours")
    builders = {side: partial(make_step, side, args.length, args.device) for side in sides}
    times, memory = measure.steps(__file__, builders, args)
    rows = measure.time_and_memory(" / ".join(sides), sides, times, memory, ("≥ 4", "—"))
    measure.save_results(__file__, rows, args.device)


if __name__ == "__main__":
    main()
