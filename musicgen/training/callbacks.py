"""Callbacks: averaged weights, random features, windows of spans, early stopping, note counts."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import WeightAveraging
from torch import Tensor, nn

from musicgen.attention import GaussianSpan, redraw_features
from musicgen.console import log
from musicgen.data.corpora.base import evenly_spaced
from musicgen.data.loading import MusicDataModule
from musicgen.data.preparation import EncodedCorpus
from musicgen.random import NoiseKey, RandomStream
from musicgen.text import pluralize
from musicgen.tokenization import Groove2Groove
from musicgen.training.module import TrainingModule
from musicgen.validation import check_float, check_int


class RedrawFeatures(pl.Callback):
    """Redraw the random features every few steps, or at random steps.

    Draws depend on the seed and the step alone, and are the same on every rank.

    Args:
        every: steps between draws.
        probability: of a draw before each step, without `every`.
    """

    def __init__(
        self, every: int | None = None, probability: float | None = None, seed: int = 0
    ) -> None:
        check_int("every", every, none_means="random steps")
        check_float("probability", probability, maximum=1, none_means="0")
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
            redraw_features(pl_module, key)


def update_windows(module: nn.Module) -> list[GaussianSpan]:
    """Update the window of each layer's learned span; return the spans."""
    spans = [m for m in module.modules() if isinstance(m, GaussianSpan)]
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


class AverageWeights(WeightAveraging):
    """Lightning's exponential average of the weights, with a shorter memory in the first steps.

    Checkpoints hold the average as their weights, and the trained weights, which a resumed run
    continues from, as `current_model_state`. Buffers, such as random features, are not averaged.

    Args:
        ema_decay: the average is the weights after the first step, t = 0, and then d times the one
            before plus 1 - d times the weights, with d = min(ema_decay, (1 + t) / (10 + t)), so
            that a short run forgets its initial weights.
    """

    def __init__(self, ema_decay: float) -> None:
        def average(averaged: Tensor, weights: Tensor, step: Tensor) -> Tensor:
            weight = (9 / (10 + step)).clamp(min=1 - ema_decay)
            return averaged.lerp(weights.to(averaged.dtype), weight.to(averaged.dtype))

        super().__init__(use_buffers=False, avg_fn=average)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._device = trainer.strategy.root_device  # the model moves there later
        super().setup(trainer, pl_module, stage)

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        super().on_validation_epoch_start(trainer, pl_module)
        update_windows(pl_module)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        super().on_validation_epoch_end(trainer, pl_module)
        update_windows(pl_module)

    def on_train_end(self, *args: Any) -> None:
        """Keep the trained weights for the callbacks that save or validate at the end."""

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage == "fit":
            super().on_train_end(trainer, pl_module)
            self._average_model = None  # else a test would load the weights that are not averaged


class EarlyStopping(pl.callbacks.EarlyStopping):
    """Lightning's early stopping, with a message.

    A resumed run may have another patience. If it has another corpus or length, losses cannot be
    compared, and the search for the lowest loss starts again.
    """

    _restarts = False

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        assert isinstance(pl_module, TrainingModule)
        self._restarts = not pl_module.is_comparable(checkpoint)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if not self._restarts:
            super().load_state_dict(state_dict | {"patience": self.patience})

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.is_global_zero and self.wait_count >= self.patience:
            lately = pluralize(self.wait_count, "validations")
            log(f"{self.monitor} has not improved in {lately}")


class LearnMaxNotes(pl.Callback):
    """Count how many notes each instrument plays at once, for `SamplingParams.max_notes`.

    Models that are not trained to the end begin notes and forget to close them. The number holds
    for all but one in a thousand of the notes of training pieces; tokens without instruments have
    none. It is in every checkpoint, unless `sampling.max_notes` is given.
    """

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(pl_module, TrainingModule)
        given = (pl_module.content.config.get("sampling") or {}).get("max_notes")
        if given is not None:
            return
        if isinstance(data, MusicDataModule) and isinstance(data.tokenizer, Groove2Groove):
            sampling = {"max_notes": max_notes_at_once(data.encoded, data.tokenizer)}
            pl_module.content = replace(pl_module.content, sampling=sampling)


def max_notes_at_once(encoded: EncodedCorpus, tokenizer: Groove2Groove) -> list[int]:
    """Return, per instrument, how many notes sound at once at 99.9% of its note-ons.

    Of at most 200 training pieces, evenly spaced.
    """
    pieces = evenly_spaced(encoded.cache.pieces("train"), 200)
    counts = [tokenizer.notes_at_once(encoded.cache[i]) for i in pieces]
    of_instruments = (np.concatenate(each) for each in zip(*counts, strict=True))
    # An instrument that never plays has the limit 1.
    most = (np.quantile(c, 0.999, method="higher") if len(c) else 1 for c in of_instruments)
    return [int(number) for number in most]
