"""Compare a training step with RoPE, LRPE and PermuteFormer with one of an absolute encoding.

The model has the width of the published music models, and linear attention with `--attention=elu`,
the feature map of the LRPE paper, or with favor or relu.
"""

from functools import partial

import torch

from benchmarks import measure
from benchmarks.training_step import step
from musicgen.attention import ELU, FAVOR, LinearAttention, ReLU
from musicgen.models import Transformer
from musicgen.position import (
    OrthogonalLRPE,
    PermutationLRPE,
    PermuteFormer,
    PositionalEncoding,
    RoPE,
    Sinusoidal,
    UnitaryLRPE,
)

# The target of each: the time of the absolute encoding / its time.
SIDES: dict[type[PositionalEncoding], str] = {
    RoPE: "≥ .95",
    OrthogonalLRPE: "≥ .95",
    PermutationLRPE: "≥ .95",
    PermuteFormer: "≥ .95",
    UnitaryLRPE: "≥ .85",
}
FEATURE_MAPS = {feature_map.name: feature_map for feature_map in (ELU, FAVOR, ReLU)}


def build(
    position: type[PositionalEncoding], attention: str, layers: int, device: str
) -> Transformer:
    """Build the published model with this encoding and feature map, in training mode."""
    torch.manual_seed(0)
    sizes = {"dim": 512, "num_layers": layers, "num_heads": 8, "ff_dim": 2048}
    linear = partial(LinearAttention, feature_map=FEATURE_MAPS[attention])
    return Transformer(333, **sizes, position=position, attention=linear).to(device)


def main() -> None:
    args = measure.arguments(
        __doc__, device="cpu", attention="elu", layers=6, length=2048, batch=1, rounds=9
    )
    tokens = torch.randint(333, (args.batch, args.length), device=args.device)
    runs = {}
    for position in (Sinusoidal, *SIDES):
        model = build(position, args.attention, args.layers, args.device)
        runs[position.name] = partial(step, model, tokens, 0)
    times = measure.interleaved(runs, args.rounds, args.device)
    base = times[Sinusoidal.name]
    rows = [
        measure.compare(f"absolute / {side.name}", base, times[side.name], "s a step", target)
        for side, target in SIDES.items()
    ]
    measure.save_results(__file__, rows, args.device)


if __name__ == "__main__":
    main()
