"""Learning-rate schedules."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from musicgen.validation import check_float, check_int


def warmup_cosine(
    optimizer: Optimizer, *, warmup_steps: int, max_steps: int, min_lr: float
) -> LambdaLR:
    """Warm up linearly over `warmup_steps`, then decay by a cosine to `min_lr` at `max_steps`."""
    return _warmup(
        optimizer, warmup_steps, max_steps, min_lr, lambda t: (1 + math.cos(math.pi * t)) / 2
    )


def warmup_polynomial(
    optimizer: Optimizer, *, warmup_steps: int, max_steps: int, min_lr: float, power: float
) -> LambdaLR:
    """Warm up linearly over `warmup_steps`, then decay to `min_lr` at `max_steps`.

    The distance from `min_lr` is proportional to (1 − t)^power, t being the share of its steps.
    """
    return _warmup(optimizer, warmup_steps, max_steps, min_lr, lambda t: (1 - t) ** power)


def _warmup(
    optimizer: Optimizer,
    warmup_steps: int,
    max_steps: int,
    min_lr: float,
    left: Callable[[float], float],
) -> LambdaLR:
    """Warm up linearly; then `left` of the share of later steps is the distance from `min_lr`."""
    check_int("max_steps", max_steps)  # trainers take -1 for an endless run
    check_float("min_lr", min_lr)
    floor = min(min_lr / optimizer.defaults["lr"], 1.0)

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        share = (step - warmup_steps) / max(1, max_steps - warmup_steps)
        return floor + (1 - floor) * left(min(1.0, share))

    return LambdaLR(optimizer, factor)


def inverse_sqrt(optimizer: Optimizer, *, warmup_steps: int) -> LambdaLR:
    """Warm up linearly over `warmup_steps`, then decay with 1/√step (Vaswani et al. 2017, §5.3)."""
    return LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup_steps, (warmup_steps / (step + 1)) ** 0.5)
    )
