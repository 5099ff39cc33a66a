"""The progress of a whole run, in steps; Lightning's bars begin anew with every epoch."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class RunProgress(ProgressBar):
    """One bar to the last step, with the loss; and a line that stays for each validation."""

    def __init__(self) -> None:
        super().__init__()
        self._enabled = True
        self._progress: Progress | None = None

    def disable(self) -> None:
        """Lightning calls this on all processes but the first."""
        self._enabled = False

    def enable(self) -> None:
        self._enabled = True

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not self._enabled:
            return
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps, {task.fields[loss]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        total = trainer.max_steps if trainer.max_steps > 0 else None
        self._bar = self._progress.add_task("", total=total, loss="")
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
            self._progress.console.print(
                f"step {trainer.global_step}: validation loss {float(loss):.4f}", highlight=False
            )

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._stop()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
