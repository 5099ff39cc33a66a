"""A moving average of the weights, which validation, checkpoints and generation use."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import WeightAveraging
from torch import Tensor

from musicgen.training.callbacks import update_windows


class AverageWeights(WeightAveraging):
    """Lightning's averaging, exponential, with its first steps weighted evenly.

    Checkpoints hold the average as their weights, and the trained weights, which a resumed run
    continues from, as `current_model_state`. Buffers, such as random features, are not averaged.

    Args:
        ema_decay: the average after step t is d times the one before plus 1 - d times the weights,
            with d = min(ema_decay, (1 + t) / (10 + t)), so that a short run forgets its initial
            weights.
    """

    def __init__(self, ema_decay: float) -> None:
        def average(averaged: Tensor, weights: Tensor, step: Tensor) -> Tensor:
            weight = (9 / (10 + step)).clamp(min=1 - ema_decay)
            return averaged.lerp(weights, weight.to(averaged.dtype))

        super().__init__(use_buffers=False, avg_fn=average)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._device = trainer.strategy.root_device  # to which the model moves later
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
