"""Training that ends in time, whatever the speed of the machine."""

from __future__ import annotations

import math
import time
from typing import Any

import pytorch_lightning as pl

from musicgen.training.lightning_compat import set_max_steps
from musicgen.training.schedules import Cooldown


class EndInTime(pl.Callback):
    """Decide the number of steps by the clock: the largest that fits at the speed after the first.

    It is decided when the rate must begin to fall, so that the weights depend on the number alone:
    `trainer.max_steps` of it gives the same ones. On a machine that becomes slower after that, the
    training stops in time, with a rate above 0.

    Args:
        seconds: of the training; its schedule is `warmup_cooldown`.
        every: steps between validations, of which the number is a multiple.
    """

    def __init__(self, seconds: float, every: int) -> None:
        self.seconds, self.every = seconds, every
        self.start, self.decided = 0.0, False
        self.first: tuple[float, int] | None = None  # seconds until the first step, and its number

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.start = time.monotonic()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any
    ) -> None:
        elapsed, step = time.monotonic() - self.start, trainer.global_step
        trainer.should_stop = trainer.should_stop or elapsed >= self.seconds
        if self.first is None:  # slower than the others
            self.first = elapsed, step
        if self.decided or step == self.first[1]:
            return
        schedule: Any = trainer.lr_scheduler_configs[0].scheduler
        factor: Cooldown = schedule.lr_lambdas[0]  # the same of all groups
        longer = self._end(step + 1, factor)
        stay = 1 - factor.cooldown
        pace = (elapsed - self.first[0]) / (step - self.first[1])
        self.decided = elapsed + pace * (round(stay * longer) - step) > stay * self.seconds
        if self.decided or step >= factor.begin:
            factor.max_steps = self._end(step, factor) if self.decided else longer
            set_max_steps(trainer, factor.max_steps)

    def _end(self, step: int, factor: Cooldown) -> int:
        """Return the first end of a training whose rate stays up to a step."""
        return self.every * math.ceil(step / (1 - factor.cooldown) / self.every)
