"""Learning-rate schedules."""

from __future__ import annotations

import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from musicgen.errors import ParameterError
from musicgen.validation import check_float, check_int


def warmup_cosine(
    optimizer: Optimizer, *, warmup_steps: int, max_steps: int, min_lr: float
) -> LambdaLR:
    """Warm up linearly over `warmup_steps`, then decay by a cosine to `min_lr` at `max_steps`."""
    check_int("warmup_steps", warmup_steps, 0)
    check_float("min_lr", min_lr)
    if max_steps < 1:  # such as -1, which trainers take for an endless run
        expected = "expected the step at which the cosine ends, >= 1"
        raise ParameterError("max_steps", max_steps, expected)
    floor = min(min_lr / optimizer.defaults["lr"], 1.0)

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        progress = (step - warmup_steps) / max(1, max_steps - warmup_steps)
        return floor + (1 - floor) * (1 + math.cos(math.pi * min(1.0, progress))) / 2

    return LambdaLR(optimizer, factor)


def warmup_polynomial(
    optimizer: Optimizer, *, warmup_steps: int, max_steps: int, min_lr: float, power: float
) -> LambdaLR:
    """Warm up linearly over `warmup_steps`, then decay to `min_lr` at `max_steps`.

    The distance from `min_lr` is proportional to (1 − t)^power, t being the share of its steps.
    """
    check_int("warmup_steps", warmup_steps, 0)
    check_float("min_lr", min_lr)
    check_float("power", power, above=0)
    check_int("max_steps", max_steps)
    floor = min(min_lr / optimizer.defaults["lr"], 1.0)

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        progress = (step - warmup_steps) / max(1, max_steps - warmup_steps)
        return floor + (1 - floor) * (1 - min(1.0, progress)) ** power

    return LambdaLR(optimizer, factor)


def inverse_sqrt(optimizer: Optimizer, *, warmup_steps: int) -> LambdaLR:
    """Warm up linearly over `warmup_steps`, then decay with 1/√step (Vaswani et al. 2017, §5.3)."""
    check_int("warmup_steps", warmup_steps)
    return LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup_steps, (warmup_steps / (step + 1)) ** 0.5)
    )
