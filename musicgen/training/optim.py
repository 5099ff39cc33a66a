"""Learning-rate schedules."""

from __future__ import annotations

import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from musicgen.errors import UserError


def warmup_cosine(
    optimizer: Optimizer, *, warmup_steps: int, max_steps: int, min_lr: float
) -> LambdaLR:
    """Linear warm-up over `warmup_steps`, then a cosine down to `min_lr` at `max_steps`.

    Raises:
        UserError: there is no last step to go down to.
    """
    if max_steps < 1:
        raise UserError(
            f"scheduler.max_steps={max_steps}: a cosine needs its end; give trainer.max_steps, or "
            "scheduler.max_steps where epochs or time end the run"
        )
    peak = optimizer.defaults["lr"]
    floor = min(min_lr / peak, 1.0)

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        progress = (step - warmup_steps) / max(1, max_steps - warmup_steps)
        return floor + (1 - floor) * (1 + math.cos(math.pi * min(1.0, progress))) / 2

    return LambdaLR(optimizer, factor)
