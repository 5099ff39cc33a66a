"""Compare a training step of the published music model with SPE and with an absolute encoding.

Sides: absolute, absolute with learned decay, sine_spe, conv_spe (gated, shared codes, R = 64), and
the paper's construction of sineSPE with codes as arrays and gated copies.
"""

from __future__ import annotations

import argparse
import json
from functools import partial

import torch

from benchmarks import measure
from musicgen.attention import FAVOR, LinearAttention
from musicgen.models import Transformer
from musicgen.position import ConvSPE, PositionalEncoding, SineSPE, Sinusoidal
from musicgen.position.spe.naive import NaiveSPE
from musicgen.random import NoiseKey

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
    decay = "learned" if side.endswith("decay") else "none"
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


def measure_side(
    side: str, layers: int, length: int, batch: int, repeats: int, device: str
) -> dict:
    """Measure seconds and peak memory of one side."""
    torch.manual_seed(0)
    model = build(side, layers, device)
    tokens = torch.randint(333, (batch, length), device=device)
    times = measure.seconds(lambda: step(model, tokens, 0), repeats, device)
    return {"seconds": min(times), "gigabytes": measure.peak_gigabytes(device)}


def main() -> None:
    args = measure.arguments(__doc__, layers=24, length=2048, batch=1, repeats=2, rounds=2)
    if args.side:
        options = {k: v for k, v in vars(args).items() if k not in ("side", "rounds")}
        print(json.dumps(measure_side(args.side, **options)))
        return
    found = measure.sides(__file__, list(SIDES), args, args.rounds)
    base, gpu = found["absolute"], args.device == "cuda"
    time, memory, rows = "s a step", "GB", []
    for name, limits in (
        ("sine_spe", ("≤ 1.10", "≤ 1.10") if gpu else ("≤ 1.25", "≤ 1.15")),
        ("conv_spe", ("≤ 1.4", "—") if gpu else ("≤ 2.0", "≤ 1.3")),
        ("absolute_decay", ("≤ 1.1", "—")),
    ):
        side = found[name]
        rows.append(
            measure.row(f"{name} / absolute", side["seconds"], base["seconds"], time, limits[0])
        )
        rows.append(
            measure.row(
                f"{name} / absolute", side["gigabytes"], base["gigabytes"], memory, limits[1]
            )
        )
    fewer = argparse.Namespace(**{**vars(args), "layers": min(args.layers, PUBLISHED_LAYERS)})
    pair = measure.sides(__file__, ["published_sine_spe", "sine_spe"], fewer, args.rounds)
    theirs, ours = pair["published_sine_spe"], pair["sine_spe"]
    what = f"published construction / sine_spe, {fewer.layers} layers"
    rows.append(measure.row(what, theirs["seconds"], ours["seconds"], time, "≥ 6"))
    rows.append(measure.row(what, theirs["gigabytes"], ours["gigabytes"], memory, "≥ 3.3"))
    measure.save_results(__file__, rows, args)


if __name__ == "__main__":
    main()
