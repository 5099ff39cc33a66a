"""Updates of the model between steps: random features and windows of spans."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch
from torch import nn

from musicgen.attention import FeatureMap, GaussianSpan
from musicgen.random import NoiseKey, RandomStream


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
