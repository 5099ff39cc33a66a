"""Learning-rate schedules."""

import math
from dataclasses import dataclass

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from musicgen.console import warn
from musicgen.validation import check_float, check_int


def warmup_cosine(
    optimizer: Optimizer, *, warmup_steps: int, max_steps: int, min_lr: float
) -> LambdaLR:
    """Warm up linearly over `warmup_steps`, then decay by a cosine to `min_lr` at `max_steps`."""
    check_int("warmup_steps", warmup_steps, 0)
    check_int("max_steps", max_steps)  # trainers take -1 for an endless run
    check_float("min_lr", min_lr)
    floor = min(min_lr / optimizer.defaults["lr"], 1.0)

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        share = min(1.0, (step - warmup_steps) / max(1, max_steps - warmup_steps))
        return floor + (1 - floor) * (1 + math.cos(math.pi * share)) / 2

    return LambdaLR(optimizer, factor)


def constant(optimizer: Optimizer, *, factor: float) -> LambdaLR:
    """Keep the rate at `factor` times its value."""
    check_float("factor", factor, above=0, maximum=1)
    return LambdaLR(optimizer, lambda step: factor)


@dataclass
class Cooldown:
    """A factor that rises linearly to 1, stays, and falls linearly to 0 (Hägele et al. 2024).

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
        fall = max(1, self.max_steps - self.begin)  # at least one step
        return min(1.0, warmup, max(0, self.max_steps - step) / fall)


def warmup_cooldown(
    optimizer: Optimizer, *, warmup_steps: int, max_steps: int, cooldown: float
) -> LambdaLR:
    """Warm up linearly, stay, and fall linearly to 0 in the share `cooldown` of the steps."""
    check_int("warmup_steps", warmup_steps, 0)
    check_int("max_steps", max_steps)
    check_float("cooldown", cooldown, above=0, maximum=1)
    # A method: of another callable, a resumed run has the attributes that the checkpoint holds.
    return LambdaLR(optimizer, Cooldown(warmup_steps, max_steps, cooldown).factor)


def warn_of_long_warmup(warmup_steps: int, steps: float) -> None:
    """Warn if a training ends before the learning rate has risen to its full value."""
    if warmup_steps > steps:
        warn(
            f"scheduler.warmup_steps={warmup_steps}: the training ends after {steps:,} steps, "
            "before the learning rate has risen to optimizer.lr"
        )


def inverse_sqrt(optimizer: Optimizer, *, warmup_steps: int) -> LambdaLR:
    """Warm up linearly over `warmup_steps`, then decay with 1/√step (Vaswani et al. 2017, §5.3)."""
    check_int("warmup_steps", warmup_steps, 0)
    peak = max(1, warmup_steps)
    return LambdaLR(optimizer, lambda step: min((step + 1) / peak, (peak / (step + 1)) ** 0.5))
