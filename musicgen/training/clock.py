"""End a training after a given time, whatever the speed of the machine."""

import math
import time
from typing import Any

import pytorch_lightning as pl

from musicgen.errors import ParameterError, UserError
from musicgen.training.schedules import Cooldown, warn_of_long_warmup
from musicgen.validation import check_float


class EndInTime(pl.Callback):
    """Choose the largest number of steps that fits into the time, at the measured speed.

    The number is decided when the learning rate must begin to fall. The weights therefore depend on
    the number alone: a run with the same `trainer.max_steps` has the same weights. If the machine
    becomes slower after that, training stops in time, with a rate above 0. A resumed run has the
    seconds that were left. Of several processes, the clock of the first one counts.

    Args:
        minutes: time limit of the training, whose schedule is `warmup_cooldown`; None: no limit.
        every: steps between validations; the number of steps is a multiple of it.
    """

    def __init__(self, minutes: float | None, every: int) -> None:
        check_float("minutes", minutes, above=0, none_means="no limit")
        self.seconds = None if minutes is None else 60 * minutes
        self.every = every
        self.start, self.elapsed, self.decided = 0.0, 0.0, False
        self.first: tuple[float, int] | None = None  # seconds until the first step, and its index
        self.max_steps: int | None = None  # decided so far

    def state_dict(self) -> dict[str, Any]:
        names = ("seconds", "elapsed", "decided", "first", "max_steps")
        return {name: getattr(self, name) for name in names} if self.seconds is not None else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.seconds is None:  # no limit of time
            return
        if state_dict.get("decided") and self.seconds > state_dict.get("seconds", self.seconds):
            steps = f"the run's {state_dict['max_steps']} steps are decided, whatever the minutes"
            cure = "more of them: minutes=null trainer.max_steps=N"
            raise ParameterError("minutes", f"{self.seconds / 60:g}", f"{steps}; {cure}")
        vars(self).update(state_dict, seconds=self.seconds)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.max_steps is not None:  # of a resumed run
            trainer.fit_loop.epoch_loop.max_steps = self.max_steps  # the trainer's is read-only

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.seconds is None:
            return
        self.start, schedule = time.monotonic() - self.elapsed, _schedule(trainer)
        if self.max_steps is not None:
            schedule.max_steps = self.max_steps

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any
    ) -> None:
        if self.seconds is None:
            return
        self.elapsed = elapsed = trainer.strategy.broadcast(time.monotonic() - self.start)
        step = trainer.global_step
        trainer.should_stop = trainer.should_stop or elapsed >= self.seconds
        if self.first is None:  # the first step is slower than the others
            self.first = elapsed, step
        if self.decided or step == self.first[1]:
            return
        schedule = _schedule(trainer)
        before_cooldown = 1 - schedule.cooldown  # share of the steps
        longer = self._end(step + 1, before_cooldown)
        first_seconds, first_step = self.first
        seconds_per_step = (elapsed - first_seconds) / (step - first_step)
        steps_to_cooldown = round(before_cooldown * longer) - step
        cooldown_begins = elapsed + seconds_per_step * steps_to_cooldown
        self.decided = cooldown_begins > before_cooldown * self.seconds
        if self.decided or step >= schedule.begin:
            self.max_steps = self._end(step, before_cooldown) if self.decided else longer
            schedule.max_steps = self.max_steps
            trainer.fit_loop.epoch_loop.max_steps = self.max_steps
            if self.decided and trainer.is_global_zero:
                warn_of_long_warmup(schedule.warmup_steps, self.max_steps)

    def _end(self, step: int, before_cooldown: float) -> int:
        """Return the fewest steps without cooldown before a step, a multiple of `every`."""
        return self.every * math.ceil(step / before_cooldown / self.every)


def _schedule(trainer: pl.Trainer) -> Cooldown:
    """Return the schedule of the learning rate, which all groups of parameters share."""
    scheduler: Any = trainer.lr_scheduler_configs[0].scheduler
    cooldown = getattr(scheduler.lr_lambdas[0], "__self__", None)
    if not isinstance(cooldown, Cooldown) or cooldown.cooldown == 1:
        raise UserError("minutes= needs scheduler=warmup_cooldown, with scheduler.cooldown below 1")
    return cooldown
