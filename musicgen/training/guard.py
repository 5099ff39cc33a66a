"""Guard a training against losses that are not finite, and report too little memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import FSDPStrategy
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from musicgen.console import warn
from musicgen.errors import UserError


@contextmanager
def out_of_memory_named() -> Iterator[None]:
    """Raise `UserError` that says what to change when memory runs out."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            raise UserError(
                "a step takes more memory than there is: a smaller loader.batch_size with a larger "
                "trainer.accumulate_grad_batches takes less, and so do recompute=true, "
                "trainer.precision=bf16-mixed and a shorter loader.length"
            ) from None
        raise


class GuardSteps(pl.Callback):
    """Skip steps whose loss or gradients are not finite; stop after some in a row.

    A skipped step changes neither weights nor optimizer; it counts as a step of the schedule.
    The norm of the gradients before they are clipped is logged.

    Args:
        limit: steps skipped in a row that end the training.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._num_skipped = self._in_row = 0
        self._losses: Tensor | float = 0.0

    def on_before_backward(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor
    ) -> None:
        self._losses = self._losses + loss.detach()

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        parameters = [p for p in pl_module.parameters() if p.grad is not None]
        norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
        if isinstance(trainer.strategy, FSDPStrategy):  # that of this process's shards
            norm = trainer.strategy.reduce(norm.square(), reduce_op="sum").sqrt()
        pl_module.log("train/gradient_norm", norm)
        total = norm + self._losses
        if trainer.world_size > 1:  # all processes skip the same steps
            total = trainer.strategy.reduce(total, reduce_op="sum")
        self._losses = 0.0
        if bool(total.isfinite()):
            self._in_row = 0
        else:
            scaler = getattr(trainer.precision_plugin, "scaler", None)
            if scaler is None or scaler.get_scale() <= 1:  # else it reduces the scale of the loss
                self._num_skipped += 1
                self._in_row += 1
                pl_module.log("train/skipped_steps", float(self._num_skipped), rank_zero_only=True)
                if self._in_row == 1 and trainer.is_global_zero:
                    skipped = "the loss or its gradients are NaN or infinite; it is skipped"
                    warn(f"step {trainer.global_step + 1}: {skipped}")
            for parameter in parameters:
                parameter.grad = None

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any
    ) -> None:
        if self._in_row >= self.limit:
            raise UserError(
                f"step {trainer.global_step}: the loss or its gradients were NaN or infinite in "
                f"{self._in_row} steps in a row, which were skipped; resume with a lower "
                "optimizer.lr or trainer.gradient_clip_val"
            )
