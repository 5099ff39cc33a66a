"""Compare a training step with SPE's hand-written gradients and one with autograd's.

The sides take turns in one process with one thread. CPU time is measured, because other programs
hardly change it. Peak memory is measured in one process for each side.

- sine plain, conv plain: few large operations (`musicgen/position/spe.py`), which autograd
  differentiates, and whose gradients it sums over layers.
"""

import time
from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks import measure
from benchmarks.training_step import step
from musicgen.attention import FAVOR, LinearAttention
from musicgen.models import Transformer
from musicgen.position import ConvSPE, PositionalEncoding, SineSPE

SIDES: dict[str, type[PositionalEncoding]] = {
    "sine": SineSPE,
    "sine plain": SineSPE,
    "conv": ConvSPE,
    "conv plain": ConvSPE,
}
PAIRS = (("sine plain", "sine"), ("conv plain", "conv"))


def training_step(side: str, model: Transformer, tokens: Tensor) -> None:
    """Run forward and backward; plain sides in SPE's form of few large operations."""
    module = type(model.position).__module__
    is_plain = side.endswith("plain")
    with patch(f"{module}.prefers_large_operations", lambda device: is_plain):
        step(model, tokens, 0)


def build(side: str, layers: int) -> Transformer:
    """The published model with this side's encoding, in training mode."""
    torch.manual_seed(0)
    attention = partial(LinearAttention, feature_map=partial(FAVOR, num_features=128))
    sizes = {"dim": 512, "num_layers": layers, "num_heads": 8, "ff_dim": 2048}
    return Transformer(333, **sizes, position=SIDES[side], attention=attention, dropout=0.0)


def main() -> None:
    args = measure.arguments(__doc__, layers=6, memory_layers=24, length=2048, batch=1, rounds=4)
    torch.set_num_threads(1)
    tokens = torch.randint(333, (args.batch, args.length))

    def make_step(side: str) -> Callable[[], None]:
        model = build(side, args.memory_layers if args.side else args.layers)

        def run() -> None:
            model.zero_grad()
            training_step(side, model, tokens)

        return run

    builders = {side: partial(make_step, side) for side in SIDES}
    times, memory = measure.steps(__file__, builders, args, time.process_time)
    rows = []
    for a, b in PAIRS:
        speed, space = f"{a} / {b}, {args.layers} layers", f"{a} / {b}, {args.memory_layers} layers"
        rows.append(measure.compare(speed, times[a], times[b], "CPU s a step", "—"))
        rows.append(measure.row(space, memory[a], memory[b], "GB", "—"))
    measure.save_results(__file__, rows)
    for pair in PAIRS:  # both sides have the same gradients
        models = [build(side, args.layers) for side in pair]
        for side, model in zip(pair, models, strict=True):
            training_step(side, model, tokens)
        for a, b in zip(*(model.parameters() for model in models), strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-2, atol=1e-5)


if __name__ == "__main__":
    main()
