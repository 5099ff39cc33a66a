"""Callbacks of our own; the rest are Lightning's."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from musicgen.attention import AttentionSpan, FeatureMap
from musicgen.data.batch import Batch
from musicgen.errors import UserError
from musicgen.position import NoiseKey
from musicgen.values import whole

# Keeps these draws apart from the positional encoding's.
_REDRAW = -1


class RedrawFeatures(pl.Callback):
    """Draw FAVOR+'s random features anew, now and then.

    Each draw is a function of seed and step, the same on every rank.

    Args:
        every: steps between draws.
        probability: or else the chance of a draw before each step.
        seed: decides when, and what.
    """

    def __init__(
        self, every: int | None = None, probability: float | None = None, seed: int = 0
    ) -> None:
        if (every is None) == (probability is None):
            raise UserError("callbacks.redraw_features takes either every or probability")
        self.every, self.probability, self.seed = every, probability or 0.0, seed

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if batch_idx % trainer.accumulate_grad_batches:
            return
        key = NoiseKey((self.seed, _REDRAW, step))
        if self.every is not None:
            due = step > 0 and step % self.every == 0
        else:
            chance = torch.rand((), generator=key.generator())
            due = bool(chance < self.probability)
        if due:
            maps = [m for m in pl_module.modules() if isinstance(m, FeatureMap)]
            for i, feature_map in enumerate(maps):
                feature_map.redraw(key.fold(i))


class FollowSpan(pl.Callback):
    """Let each layer's window follow its learned span after every step, and log it."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._spans = [m for m in pl_module.modules() if isinstance(m, AttentionSpan)]

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any
    ) -> None:
        for layer, span in enumerate(self._spans):
            span.update_window()
            for dim, window in enumerate(span.window() or ()):
                pl_module.log(f"span/layer{layer}_dim{dim}", float(window), rank_zero_only=True)


class ValidateAtLeastOnce(pl.Callback):
    """Validate at the end of a run that was over before its first validation: it has a best too."""

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        best = trainer.checkpoint_callback
        validated = not isinstance(best, ModelCheckpoint) or best.best_model_path
        if not validated and trainer.enable_validation:
            trainer.validating = True  # as Lightning does around its own
            trainer.fit_loop.epoch_loop.val_loop.run()
            trainer.training = True


class SaveLast(pl.Callback):
    """Save what `resume=` goes on from: every so often, at the end, and when stopped.

    Always between two steps, so that what is saved is whole: the first Ctrl-C, or SIGTERM, lets
    the step end; a second Ctrl-C does not wait.

    Args:
        path: the file, always the same one.
        every: steps between saves.
    """

    def __init__(self, path: str, every: int) -> None:
        whole("trainer.val_check_interval (callbacks.last.every)", every)
        self.path, self.every = path, every
        self._stop = self._in_step = False
        self._saved = self._step = 0
        self._handlers: dict[int, Any] = {}

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._saved = self._step = trainer.global_step
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._handlers[number] = signal.signal(number, self._on_signal)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        while self._handlers:
            signal.signal(*self._handlers.popitem())

    def on_before_optimizer_step(self, *args: Any) -> None:
        self._in_step = True

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any
    ) -> None:
        self._in_step = False
        if trainer.global_step == self._step:
            return  # gradients are still being accumulated
        self._step = trainer.global_step
        stop = self._stop
        if trainer.world_size > 1:  # all processes stop after the same step
            stop = trainer.strategy.reduce_boolean_decision(stop, all=False)
        if stop or self._step % self.every == 0 or self._step == trainer.max_steps:
            self._save(trainer)
        if stop:
            raise KeyboardInterrupt

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._step != self._saved:  # by epochs or by time
            self._save(trainer)

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        # One process's failure: the others would not come to save with it.
        if self._step != self._saved and not self._in_step and trainer.world_size == 1:
            self._save(trainer)

    def _save(self, trainer: pl.Trainer) -> None:
        trainer.save_checkpoint(self.path, weights_only=False)
        self._saved = self._step

    def _on_signal(self, *_: Any) -> None:
        if self._stop:
            raise KeyboardInterrupt
        self._stop = True


class Throughput(pl.Callback):
    """Log the tokens a second that training takes in, over all processes.

    Args:
        every: steps between figures.
    """

    def __init__(self, every: int = 10) -> None:
        whole("trainer.log_every_n_steps (callbacks.throughput.every)", every)
        self.every = every
        self._tokens, self._since = 0, 0.0

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._tokens == 0:
            self._since = time.perf_counter()

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        self._tokens += batch.tokens.numel()
        if trainer.global_step % self.every == 0:
            seconds = time.perf_counter() - self._since
            rate = self._tokens * trainer.world_size / seconds
            pl_module.log("train/tokens_per_second", rate, rank_zero_only=True)
            self._tokens = 0

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # Validation's time is not training's.
        self._tokens = 0
