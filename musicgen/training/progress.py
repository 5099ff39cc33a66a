"""Progress of a whole run in steps; Lightning's progress bars restart every epoch."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ProgressBar
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from musicgen.console import log, progress_bar


class RunProgress(ProgressBar):
    """Show one bar up to the last step with the loss, and log a line for each validation."""

    def __init__(self) -> None:
        super().__init__()
        self._progress: Progress | None = None

    def disable(self) -> None:
        """Do nothing: the bar starts on the first process only."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.is_global_zero:
            loss = TextColumn("steps, {task.fields[loss]}")
            self._progress = progress_bar(MofNCompleteColumn(), loss, TimeRemainingColumn())
            total = trainer.max_steps if trainer.max_steps > 0 else None
            self._bar = self._progress.add_task("training", total=total, loss="")
            self._progress.start()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any
    ) -> None:
        if self._progress is not None:
            loss = trainer.callback_metrics.get("train/loss")
            text = "" if loss is None else f"loss {float(loss):.3f}"
            self._progress.update(self._bar, completed=trainer.global_step, loss=text)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        loss = trainer.callback_metrics.get("val/loss")
        if self._progress is not None and loss is not None:
            log(f"step {trainer.global_step}: validation loss {float(loss):.4f}")

    def on_train_end(self, *args: Any) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def on_exception(self, *args: Any) -> None:
        self.on_train_end()
