"""Callbacks: feature redraws, span windows, last checkpoint, validation, throughput, resources."""

from __future__ import annotations

import signal
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import nn

from musicgen.attention import AttentionSpan, FeatureMap
from musicgen.batches import Batch
from musicgen.data.loading import MusicDataModule
from musicgen.data.preparation import EncodedCorpus
from musicgen.errors import ParameterError
from musicgen.memory import peak_memory, reset_peak_memory
from musicgen.random import NoiseKey, RandomStream
from musicgen.tokenization import Groove2Groove
from musicgen.training.lightning_compat import validate, validates_next
from musicgen.training.module import TrainingModule
from musicgen.validation import check_float, check_int


class RedrawFeatures(pl.Callback):
    """Redraw the random features every few steps, or at random steps.

    Draws depend on the seed and the step alone, and are the same on every rank.

    Args:
        every: steps between draws.
        probability: of a draw before each step, instead of `every`.
    """

    def __init__(
        self, every: int | None = None, probability: float | None = None, seed: int = 0
    ) -> None:
        if (every is None) == (probability is None):
            raise ParameterError("every", every, "expected either every or probability")
        check_int("every", every, none_means="")
        check_int("seed", seed, 0)
        check_float("probability", probability, maximum=1, none_means="")
        self.every, self.probability, self.seed = every, probability or 0.0, seed

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        key = NoiseKey((self.seed, RandomStream.FEATURE_REDRAW, step))
        if self.every is not None:
            due = step > 0 and step % self.every == 0
        else:
            due = bool(torch.rand((), generator=key.generator()) < self.probability)
        if due and batch_idx % trainer.accumulate_grad_batches == 0:
            maps = (m for m in pl_module.modules() if isinstance(m, FeatureMap))
            for i, feature_map in enumerate(maps):
                feature_map.redraw(key.fold(i))


def update_windows(module: nn.Module) -> list[AttentionSpan]:
    """Update the window of each layer's learned span; return the spans."""
    spans = [m for m in module.modules() if isinstance(m, AttentionSpan)]
    for span in spans:
        span.update_window()
    return spans


class UpdateSpanWindow(pl.Callback):
    """Update each layer's window from its learned span after every step, and log it."""

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any
    ) -> None:
        for layer, span in enumerate(update_windows(pl_module)):
            for dim, window in enumerate(span.window or ()):
                pl_module.log(f"span/layer{layer}_dim{dim}", float(window), rank_zero_only=True)


class SaveLast(pl.Callback):
    """Save the last checkpoint every `every` steps, at the end, and when a signal stops the run.

    It is saved between steps, never within one, and before the validation that follows a step, so
    that a failure in it loses nothing; a resumed run begins with that validation. The first Ctrl-C,
    SIGTERM or SIGUSR1 (which SLURM sends ahead of a time limit) lets the current step finish, the
    second one interrupts it.
    """

    def __init__(self, path: str, every: int) -> None:
        check_int("every", every)
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


# SIGUSR1 is not known to Windows.
_STOPPING = [getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, n)]


class ValidateAtLeastOnce(pl.Callback):
    """Validate at the end of a run that has no best checkpoint yet."""

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        best = trainer.checkpoint_callback
        validated = not isinstance(best, ModelCheckpoint) or best.best_model_path
        if not validated and trainer.enable_validation:
            validate(trainer)


class Throughput(pl.Callback):
    """Log tokens per second of training, over all processes, every `every` steps.

    And per second of processor time, of all threads, which other programs hardly change. The time
    of validations is left out.
    """

    def __init__(self, every: int = 10) -> None:
        check_int("every", every)
        self.every = every
        self._tokens, self._start, self._cpu_start, self._step = 0, 0.0, 0.0, 0

    def on_train_batch_start(self, *args: Any) -> None:
        if self._tokens == 0:
            self._start, self._cpu_start = time.perf_counter(), time.process_time()

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        self._tokens += batch.tokens.shape[:2].numel()
        if trainer.global_step == self._step:
            return  # gradients are still being accumulated
        self._step = trainer.global_step
        if self._step % self.every == 0:
            rate = self._tokens / max(time.process_time() - self._cpu_start, 1e-9)
            pl_module.log("train/tokens_per_cpu_second", rate, rank_zero_only=True)
            rate = self._tokens * trainer.world_size / (time.perf_counter() - self._start)
            pl_module.log("train/tokens_per_second", rate, rank_zero_only=True)
            self._tokens = 0

    def on_validation_start(self, *args: Any) -> None:
        self._tokens = 0


class Resources(pl.Callback):
    """Log with each validation how long training has taken, and how much memory.

    Hours are the wall clock's, with validations, summed over the sessions of a resumed run. Memory
    is the most so far in this session: of tensors on a GPU, otherwise of the whole process. On GPUs
    and on Linux, that of earlier runs in the same process, as in a multirun, does not count.
    """

    def __init__(self) -> None:
        self._before, self._start = 0.0, time.monotonic()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._start = time.monotonic()
        reset_peak_memory(pl_module.device)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        pl_module.log("train/hours", self._seconds() / 3600, rank_zero_only=True)
        if (memory := peak_memory(pl_module.device)) is not None:
            pl_module.log("train/gigabytes", memory / 1e9, rank_zero_only=True)

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self._seconds()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._before = state_dict["seconds"]

    def _seconds(self) -> float:
        return self._before + time.monotonic() - self._start


class LearnMaxNotes(pl.Callback):
    """Learn how many notes each instrument plays at once: `max_notes` of `SamplingParams`.

    Models that are not trained to the end begin notes and forget to close them. The number holds
    for all but one in a thousand of the notes of training pieces; tokens without instruments have
    none. It is in every checkpoint.
    """

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        data = trainer.datamodule  # type: ignore[attr-defined]
        if isinstance(data, MusicDataModule) and isinstance(data.tokenizer, Groove2Groove):
            sampling = {"max_notes": max_notes_at_once(data.encoded, data.tokenizer)}
            assert isinstance(pl_module, TrainingModule)
            pl_module.content = replace(pl_module.content, sampling=sampling)


def max_notes_at_once(encoded: EncodedCorpus, tokenizer: Groove2Groove) -> list[int]:
    """Return for each instrument how many notes sound at once at 99.9% of its note-ons.

    Of at most 200 training pieces, evenly spaced.
    """
    pieces = encoded.cache.pieces("train")
    pieces = [pieces[i * len(pieces) // 200] for i in range(200)] if len(pieces) > 200 else pieces
    counts = [tokenizer.events.notes_at_once(encoded.cache[i]) for i in pieces]
    of_instruments = (np.concatenate(each) for each in zip(*counts, strict=True))
    # An instrument that never plays may play one note.
    most = (np.quantile(c, 0.999, method="higher") if len(c) else 1 for c in of_instruments)
    return [int(number) for number in most]
