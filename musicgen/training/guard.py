"""Guard a training against losses that are not finite, and report too little memory."""

import traceback
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
from musicgen.errors import WRONG_SETTINGS, UserError
from musicgen.training.optimizers import is_fused
from musicgen.validation import check_int


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


@contextmanager
def restoring_named(checkpoint: str | None) -> Iterator[None]:
    """Raise `UserError` if Lightning cannot restore the state of training from a checkpoint.

    Args:
        checkpoint: the file, which may come from an untrusted source; None: a new run.
    """
    try:
        yield
    except UserError:
        raise
    except WRONG_SETTINGS as error:
        frames = traceback.extract_tb(error.__traceback__)
        restores = any(
            frame.filename.endswith("checkpoint_connector.py") and "restore" in frame.name
            for frame in frames
        )
        if checkpoint is None or not restores:
            raise
        raise UserError(
            f"{checkpoint}: its state of training cannot be restored ({error!r}); begin a new run "
            f"with its weights: init={checkpoint}"
        ) from None


class GuardSteps(pl.Callback):
    """Skip steps whose loss or gradients are not finite; stop after some in a row.

    A skipped step changes neither weights nor optimizer; it counts as a step of the schedule.
    The norm of the gradients before they are clipped is logged. On a GPU a fused optimizer skips
    the step itself, and what was skipped is read only every `log_every_n_steps`, as a GPU waits
    for each value that is read.

    Args:
        limit: steps skipped in a row that end the training.
    """

    def __init__(self, limit: int) -> None:
        check_int("limit", limit)
        self.limit = limit
        self._num_skipped = self._in_row = 0
        self._on_device: Tensor | None = None  # [2], the same of a fused optimizer's steps
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
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is None and is_fused(optimizer):
            self._skip_on_device(trainer, optimizer, total)
        elif bool(total.isfinite()):
            self._in_row = 0
        else:
            if scaler is None or scaler.get_scale() <= 1:  # else it reduces the scale of the loss
                self._record(trainer, pl_module, self._num_skipped + 1, self._in_row + 1)
            for parameter in parameters:
                parameter.grad = None

    def _skip_on_device(self, trainer: pl.Trainer, optimizer: Optimizer, total: Tensor) -> None:
        """Let a fused optimizer skip its step unless the total is finite."""
        skipped = ~total.isfinite()
        optimizer.found_inf = skipped.float()  # type: ignore[attr-defined]
        if self._on_device is None:
            self._on_device = torch.zeros(2, dtype=torch.long, device=total.device)
        num_skipped, in_row = self._on_device
        self._on_device = torch.stack((num_skipped + skipped, (in_row + 1) * skipped))
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if trainer.global_step % every == 0:
            assert trainer.lightning_module is not None
            self._record(trainer, trainer.lightning_module, *self._on_device.tolist())

    def _record(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, num_skipped: int, in_row: int
    ) -> None:
        """Log the number of skipped steps, and warn of the first in a row."""
        if num_skipped > self._num_skipped:
            pl_module.log("train/skipped_steps", float(num_skipped), rank_zero_only=True)
            if not self._in_row and trainer.is_global_zero:
                last = trainer.global_step + 1
                every = trainer.log_every_n_steps  # type: ignore[attr-defined]
                first = last - in_row + 1
                step = f"step {first}" if in_row else f"one of {every} steps up to {last}"
                skipped = "the loss or its gradients are NaN or infinite; it is skipped"
                warn(f"{step}: {skipped}")
        self._num_skipped, self._in_row = num_skipped, in_row

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any
    ) -> None:
        if self._in_row >= self.limit:
            raise UserError(
                f"step {trainer.global_step}: the loss or its gradients were NaN or infinite in "
                f"{self._in_row} steps in a row, which were skipped; resume with a lower "
                "optimizer.lr or trainer.gradient_clip_val"
            )
