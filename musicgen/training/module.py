"""The LightningModule: a model, a task, an optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from musicgen.checkpoints import CONTENT_KEY, CheckpointContent, migrate
from musicgen.data.loading.batch import Batch
from musicgen.errors import ParameterError, parameter_of
from musicgen.models import Transformer
from musicgen.random import NoiseKey, RandomStream
from musicgen.training.tasks import LanguageModeling
from musicgen.validation import check_float


class TrainingModule(pl.LightningModule):
    """Train a causal model on a task.

    Args:
        scheduler: builds a learning-rate schedule, stepped every step, from the optimizer.
        content: what checkpoints store beside the weights.
        seed: of the positional encoding's noise and of dropout.
    """

    def __init__(
        self,
        model: Transformer,
        task: LanguageModeling,
        optimizer: partial[Optimizer],
        scheduler: Callable[..., LRScheduler],
        content: CheckpointContent,
        seed: int,
    ) -> None:
        super().__init__()
        if not model.causal:
            expected = "expected true; otherwise the model sees the tokens that it predicts"
            raise ParameterError("model.causal", model.causal, expected)
        with parameter_of("optimizer"):
            check_float("lr", optimizer.keywords.get("lr"), above=0, none_means="")
        self.model, self.task = model, task
        self._optimizer, self._scheduler = optimizer, scheduler
        self.content, self.seed = content, seed

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        # The key depends on the step alone, so that a resumed run draws the same noise.
        micro_batch = batch_idx % self.trainer.accumulate_grad_batches
        noise = NoiseKey((self.seed, self.trainer.global_step, micro_batch, self.global_rank))
        # Dropout draws from torch's global generator, which checkpoints do not store.
        torch.manual_seed(noise.fold(RandomStream.DROPOUT).seed)
        loss = self.task.loss(self.model, batch, noise)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate(batch, "val")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate(batch, "test")

    def _evaluate(self, batch: Batch, split: str) -> None:
        self.log(
            f"{split}/loss",
            self.task.loss(self.model, batch, noise=None),
            prog_bar=True,
            on_epoch=True,
            sync_dist=True,
            batch_size=int(batch.num_targets),  # weight by tokens, without padding
        )

    def configure_optimizers(self) -> Any:
        optimizer = self._optimizer(self.model.parameters())
        with parameter_of("scheduler"):
            scheduler = self._scheduler(optimizer)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint[CONTENT_KEY] = asdict(self.content)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        migrate(checkpoint)
        self.content.check_same_vocabulary(CheckpointContent.from_plain(checkpoint))
