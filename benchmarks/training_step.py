"""Compare a training step of the published music model with SPE and with an absolute encoding.

Sides: absolute, absolute with learned decay, sine_spe, conv_spe (gated, shared codes, R = 64), and
the paper's construction of sineSPE with codes as arrays and gated copies.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import measure
from musicgen.attention import FAVOR, LinearAttention
from musicgen.models import Transformer
from musicgen.position import ConvSPE, PositionalEncoding, SineSPE, Sinusoidal
from musicgen.random import NoiseKey
from tests.position.naive_spe import NaiveSPE

SIDES = ("absolute", "absolute_decay", "sine_spe", "conv_spe")
# The paper's construction takes more than 24 GB at 24 layers.
PUBLISHED_LAYERS = 6


class _PublishedSineSPE(NaiveSPE):
    """The naive form of sineSPE, built from the arguments of a model."""

    def __init__(self, **sizes: int) -> None:
        super().__init__(SineSPE(**sizes))


def build(side: str, layers: int, device: str) -> Transformer:
    """Build the published model with this side's encoding, in training mode."""
    positions: dict[str, type[PositionalEncoding]] = {
        "absolute": Sinusoidal,
        "absolute_decay": Sinusoidal,
        "sine_spe": SineSPE,
        "conv_spe": ConvSPE,
        "published_sine_spe": _PublishedSineSPE,
    }
    decay = "head" if side.endswith("decay") else "none"
    attention = partial(LinearAttention, feature_map=partial(FAVOR, num_features=128), decay=decay)
    sizes = {"dim": 512, "num_layers": layers, "num_heads": 8, "ff_dim": 2048}
    model = Transformer(333, **sizes, position=positions[side], attention=attention, dropout=0.1)
    return model.to(device)


def step(model: Transformer, tokens: torch.Tensor, number: int) -> None:
    """Run forward and backward."""
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=tokens.device.type == "cuda"):
        logits = model(tokens, noise=NoiseKey((number,)))
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
    loss.backward()


def matrix_products(side: str, layers: int, length: int) -> float:
    """Return the operations of the matrix products in a step of one row, in 10^9."""
    with FlopCounterMode(display=False) as counter:
        step(build(side, layers, "cpu"), torch.randint(333, (1, length)), 0)
    return counter.get_total_flops() / 1e9


def main() -> None:
    args = measure.arguments(__doc__, device="cpu", layers=24, length=2048, batch=1, rounds=4)
    fewer = min(args.layers, PUBLISHED_LAYERS)
    small, published = f"sine_spe, {fewer} layers", "published construction"

    def make_step(side: str, layers: int) -> Callable[[], None]:
        tokens = torch.randint(333, (args.batch, args.length), device=args.device)
        return partial(step, build(side, layers, args.device), tokens, 0)

    builders = {side: partial(make_step, side, args.layers) for side in SIDES}
    builders[small] = partial(make_step, "sine_spe", fewer)
    builders[published] = partial(make_step, "published_sine_spe", fewer)
    times, memory = measure.steps(__file__, builders, args)
    gpu = args.device == "cuda"
    targets = {
        ("sine_spe", "absolute"): ("≤ 1.10", "≤ 1.05") if gpu else ("≤ 1.25", "≤ 1.15"),
        ("conv_spe", "absolute"): ("≤ 1.4", "—") if gpu else ("≤ 1.5", "≤ 1.3"),
        ("absolute_decay", "absolute"): ("≤ 1.1", "—"),
        (published, small): ("≥ 6", "≥ 3.3"),
    }
    rows = []
    for sides, limits in targets.items():
        rows += measure.time_and_memory(" / ".join(sides), sides, times, memory, limits)
        if "absolute" in sides:
            products = [matrix_products(side, args.layers, args.length) for side in sides]
            rows.append(measure.row(" / ".join(sides), *products, "GFLOP", "—"))
    measure.save_results(__file__, rows, args.device)


if __name__ == "__main__":
    main()
