"""Progress of a whole run in steps; Lightning's progress bars restart every epoch."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ProgressBar
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from musicgen.console import log, progress_bar

_SHOWN = {"train/loss": ", loss {:.3f}", "train/tokens_per_second": ", {:,.0f} tokens/s"}


class RunProgress(ProgressBar):
    """Show one bar up to the last step with loss and speed, and log a line for each validation."""

    def __init__(self) -> None:
        super().__init__()
        self._progress: Progress | None = None

    def disable(self) -> None:
        """Do nothing: the bar starts on the first process only."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.is_global_zero:
            state = TextColumn("steps{task.fields[state]}")
            self._progress = progress_bar(MofNCompleteColumn(), state, TimeRemainingColumn())
            self._bar = self._progress.add_task("training", total=None, state="")
            self._progress.start()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any
    ) -> None:
        if self._progress is not None:
            found = ((trainer.callback_metrics.get(name), text) for name, text in _SHOWN.items())
            state = "".join(text.format(float(value)) for value, text in found if value is not None)
            done, last = trainer.global_step, trainer.max_steps  # which a clock may change
            total = last if last > 0 else None
            self._progress.update(self._bar, completed=done, total=total, state=state)

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
