"""The last checkpoint: saved regularly, and when a signal (SIGTERM, SIGUSR1, Ctrl-C) comes."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ModelCheckpoint

from musicgen.training.lightning_compat import validate, validates_next

# SIGUSR1 is not known to Windows.
_STOPPING = [getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, n)]


class SaveLast(pl.Callback):
    """Save the last checkpoint every `every` steps, at the end, and when a signal stops the run.

    It is saved between steps, never within one, and before the validation that follows a step, so
    that a failure in it loses nothing; a resumed run begins with that validation. The first Ctrl-C,
    SIGTERM or SIGUSR1 (which SLURM sends ahead of a time limit) lets the current step finish, the
    second one interrupts it.
    """

    def __init__(self, path: str, every: int) -> None:
        self.path, self.every = path, every
        self._stop = self._stopped = self._trained = False
        self._saved_step = self._step = 0
        self._handlers: dict[int, Any] = {}

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._saved_step = self._step = trainer.global_step
        if threading.current_thread() is threading.main_thread():
            for number in _STOPPING:
                self._handlers[number] = signal.signal(number, self._on_signal)
        self._trained = True
        if self._step > 0 and validates_next(trainer):  # a resumed run
            validate(trainer)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # A run that was killed in its last validation resumes without a step to train.
        if not self._trained and validates_next(trainer):
            validate(trainer)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        while self._handlers:
            signal.signal(*self._handlers.popitem())

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        if trainer.global_step == self._step:
            return  # gradients are still being accumulated
        self._step = trainer.global_step
        stop = self._stop
        if trainer.world_size > 1:  # all processes stop after the same step
            stop = trainer.strategy.reduce_boolean_decision(stop, all=False)
        due = self._step % self.every == 0 or self._step == trainer.max_steps
        # The best checkpoint is never without the last one, without which no run resumes; a
        # validation within an accumulated step may follow the first one.
        first = self._saved_step == 0 and trainer.accumulate_grad_batches > 1
        if stop or due or first or validates_next(trainer):
            self._save(trainer)
        self._stopped = stop

    def on_train_batch_start(self, *args: Any) -> None:
        self._end_if_stopped()

    def on_validation_start(self, *args: Any) -> None:
        self._end_if_stopped()

    def _end_if_stopped(self) -> None:
        if self._stopped:  # the step that was saved has been logged since
            raise KeyboardInterrupt

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._step != self._saved_step:  # the run ended by epochs or by time
            self._save(trainer)

    def _save(self, trainer: pl.Trainer) -> None:
        trainer.save_checkpoint(self.path, weights_only=False)
        self._saved_step = self._step

    def _on_signal(self, *_: Any) -> None:
        if self._stop:
            raise KeyboardInterrupt
        self._stop = True


class ValidateAtLeastOnce(pl.Callback):
    """Validate at the end of a run that has no best checkpoint yet."""

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        best = trainer.checkpoint_callback
        validated = not isinstance(best, ModelCheckpoint) or best.best_model_path
        if not validated and trainer.enable_validation:
            validate(trainer)
