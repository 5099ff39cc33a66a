"""Compare a step of MuonAdamW with torch's Muon (in bfloat16) beside AdamW, and with AdamW alone.

CPU time of the optimizer alone, for the model of `model_options` with a short convolution.
"""

from __future__ import annotations

import time
from functools import partial

import torch
from torch.optim import AdamW, Muon, Optimizer

from benchmarks import measure
from benchmarks.model_options import build
from musicgen.training.muon import MuonAdamW


def main() -> None:
    args = measure.arguments(__doc__, layers=4, rounds=8)
    sides: dict[str, list[Optimizer]] = {}
    for name in ("MuonAdamW", "torch's Muon and AdamW", "AdamW"):
        model = build("short_conv=4", args.layers, args.device)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        matrices, others = MuonAdamW(model, lr=0.02).param_groups
        if name == "MuonAdamW":
            sides[name] = [MuonAdamW(model, lr=0.02)]
        elif name == "AdamW":
            sides[name] = [AdamW(model.parameters())]
        else:
            sides[name] = [Muon(_square(matrices["params"])), AdamW(others["params"])]
    runs = {name: partial(_step, optimizers) for name, optimizers in sides.items()}
    clock = time.process_time if args.device == "cpu" else time.perf_counter
    times = measure.interleaved(runs, args.rounds, args.device, clock)
    rows = [
        measure.compare(
            f"{name} / MuonAdamW", times[name], times["MuonAdamW"], "seconds a step", "—"
        )
        for name in list(sides)[1:]
    ]
    measure.save_results(__file__, rows, args)


def _square(matrices: list[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
    """Split the maps of queries, keys and values, of three times the rows."""
    parts = []
    for matrix in matrices:
        assert matrix.grad is not None
        number = 3 if matrix.shape[0] == 3 * matrix.shape[1] else 1
        gradients = matrix.grad.chunk(number)
        for weight, gradient in zip(matrix.detach().chunk(number), gradients, strict=True):
            parts.append(torch.nn.Parameter(weight))
            parts[-1].grad = gradient
    return parts


def _step(optimizers: list[Optimizer]) -> None:
    for optimizer in optimizers:
        optimizer.step()


if __name__ == "__main__":
    main()
