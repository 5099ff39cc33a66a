"""The LightningModule: a model, a task, an optimizer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from musicgen.data.batch import Batch
from musicgen.errors import UserError
from musicgen.models import Transformer
from musicgen.position import NoiseKey
from musicgen.training.checkpoint import CONTENT_KEY, CheckpointContent
from musicgen.training.tasks import LanguageModeling
from musicgen.values import number

# Keeps these draws apart from the positional encoding's.
_DROPOUT = -3


class TrainingModule(pl.LightningModule):
    """Trains a model on a task.

    Args:
        model: the model.
        task: turns a batch into a loss.
        optimizer: builds an optimizer from parameters.
        scheduler: builds a schedule, by step, from the optimizer.
        content: what a checkpoint holds beside the weights.
        seed: decides the positional encoding's noise.
    """

    def __init__(
        self,
        model: nn.Module,
        task: LanguageModeling,
        optimizer: partial[Optimizer],
        scheduler: Callable[..., LRScheduler],
        content: CheckpointContent,
        seed: int,
    ) -> None:
        super().__init__()
        assert isinstance(model, Transformer)
        if not model.causal:
            raise UserError(
                "model.causal=false lets a language model see what it is to predict; "
                "use model.causal=true"
            )
        # The schedule divides by it.
        number("optimizer.lr", optimizer.keywords.get("lr"), above=0, null="")
        self.model, self.task = model, task
        self._optimizer, self._scheduler = optimizer, scheduler
        self.content, self.seed = content, seed

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        # A function of where we are, so that a resumed run sees the noise it would have seen.
        micro_batch = batch_idx % self.trainer.accumulate_grad_batches
        noise = NoiseKey((self.seed, self.trainer.global_step, micro_batch, self.global_rank))
        # Dropout draws from torch's own generator, which no checkpoint holds.
        torch.manual_seed(noise.fold(_DROPOUT).seed)
        loss = self.task.loss(self.model, batch, noise)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate(batch, "val")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate(batch, "test")

    def _evaluate(self, batch: Batch, split: str) -> None:
        loss = self.task.loss(self.model, batch, noise=None)
        # Weighted by tokens, so that padding does not count.
        self.log(
            f"{split}/loss",
            loss,
            prog_bar=True,
            on_epoch=True,
            sync_dist=True,
            batch_size=int(batch.num_targets),
        )

    def configure_optimizers(self) -> Any:
        optimizer = self._optimizer(self.model.parameters())
        schedule = {"scheduler": self._scheduler(optimizer), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint[CONTENT_KEY] = self.content.to_plain()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.content.check_same_vocabulary(CheckpointContent.from_plain(checkpoint))
