"""Learning-rate schedules."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

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


@dataclass
class Cooldown:
    """The factor of a rate that warms up, stays, and falls linearly to 0 (Hägele et al. 2024).

    `max_steps` may change while the rate stays: `musicgen.training.clock` does so.
    """

    warmup_steps: int
    max_steps: int
    cooldown: float

    @property
    def begin(self) -> int:
        """The step after which the rate falls."""
        return round((1 - self.cooldown) * self.max_steps)

    def factor(self, step: int) -> float:
        warmup = (step + 1) / max(1, self.warmup_steps)
        fall = max(1, self.max_steps - self.begin)  # none of a single step
        return min(1.0, warmup, max(0, self.max_steps - step) / fall)


def warmup_cooldown(
    optimizer: Optimizer, *, warmup_steps: int, max_steps: int, cooldown: float
) -> LambdaLR:
    """Warm up linearly, stay, and fall linearly to 0 in the share `cooldown` of the steps."""
    check_int("max_steps", max_steps)
    check_float("cooldown", cooldown, above=0, maximum=1)
    # A method: of another callable, a resumed run has the attributes that the checkpoint holds.
    return LambdaLR(optimizer, Cooldown(warmup_steps, max_steps, cooldown).factor)


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
    peak = max(1, warmup_steps)
    return LambdaLR(optimizer, lambda step: min((step + 1) / peak, (peak / (step + 1)) ** 0.5))
