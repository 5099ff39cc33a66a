"""Compare a step of MuonAdamW with torch's Muon (in bfloat16) beside AdamW, and with AdamW alone.

CPU time of the optimizer alone, for the model of `model_options` with a short convolution.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.optim import AdamW, Muon, Optimizer

from benchmarks import measure
from benchmarks.model_options import build
from musicgen.models import Transformer
from musicgen.training.muon import MuonAdamW, linear_maps


def main() -> None:
    args = measure.arguments(__doc__, layers=4, rounds=8)
    models = [build("short_conv=4", args.layers, args.device) for _ in range(3)]
    for model in models:
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
    sides: dict[str, list[Optimizer]] = {
        "MuonAdamW": [MuonAdamW(models[0], lr=0.02)],
        "torch's Muon and AdamW": _torch_optimizers(models[1]),
        "AdamW": [AdamW(models[2].parameters())],
    }
    runs = {name: partial(_step, optimizers) for name, optimizers in sides.items()}
    times = measure.interleaved(runs, args.rounds, args.device, measure.cpu_clock(args.device))
    rows = [
        measure.compare(
            f"{name} / MuonAdamW", times[name], times["MuonAdamW"], "seconds a step", "—"
        )
        for name in list(sides)[1:]
    ]
    measure.save_results(__file__, rows, args)


def _torch_optimizers(model: Transformer) -> list[Optimizer]:
    """Return torch's Muon, with a parameter for each linear map, and AdamW for the rest."""
    parts = []
    for weight, number in (fused := dict(linear_maps(model))).items():
        assert weight.grad is not None
        for part, gradient in zip(weight.chunk(number), weight.grad.chunk(number), strict=True):
            parts.append(nn.Parameter(part.detach()))
            parts[-1].grad = gradient
    return [Muon(parts), AdamW([p for p in model.parameters() if p not in fused])]


def _step(optimizers: list[Optimizer]) -> None:
    for optimizer in optimizers:
        optimizer.step()


if __name__ == "__main__":
    main()
