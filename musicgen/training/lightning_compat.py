"""All that training takes from private parts of Lightning and torch, each with the reason.

`tests/training/test_lightning_compat.py` fails where a new version has changed one.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from lightning_fabric.loggers.logger import rank_zero_experiment
from pytorch_lightning import callbacks, loggers
from pytorch_lightning.loggers.csv_logs import ExperimentWriter
from pytorch_lightning.strategies.launchers import subprocess_script

# To count the bytes of all tensors that a step makes: torch has no public way on a CPU.
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

__all__ = [
    "AppendingWriter",
    "CSVLogger",
    "TorchDispatchMode",
    "WeightAveraging",
    "tree_iter",
    "validate",
    "validates_next",
    "without_process_observer",
]


def validates_next(trainer: pl.Trainer) -> bool:
    """Return whether Lightning's training loop validates after the current batch.

    The last checkpoint is saved before a validation, for which Lightning has no hook in which the
    state of its loops is that after a step.
    """
    if not trainer.enable_validation:
        return False
    fetcher: Any = trainer.fit_loop._data_fetcher  # None after the end
    return trainer.fit_loop.epoch_loop._should_check_val_fx(fetcher)


def validate(trainer: pl.Trainer) -> None:
    """Run a whole validation where the training loop would not; `Trainer.validate` ends a fit."""
    loop = trainer.fit_loop.epoch_loop.val_loop
    loop.restarting = False  # otherwise a resumed one continues where it was
    loop.reset_restart_stage()
    trainer.validating = True  # as in Lightning's training loop
    loop.run()
    trainer.training = True


@contextmanager
def without_process_observer() -> Iterator[None]:
    """Start no observer of processes: Lightning's kills the first process without a word."""
    observe = subprocess_script._launch_process_observer
    subprocess_script._launch_process_observer = lambda child_processes: None
    try:
        yield
    finally:
        subprocess_script._launch_process_observer = observe


class WeightAveraging(callbacks.WeightAveraging):
    """Lightning's, with the average on the device of training, to which the model moves later."""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._device = trainer.strategy.root_device
        super().setup(trainer, pl_module, stage)


class AppendingWriter(ExperimentWriter):
    """Takes over the columns of an existing file, which Lightning's writer deletes."""

    def _check_log_dir_exists(self) -> None:
        path = Path(self.metrics_file_path)
        self.resumes = path.is_file()
        if self.resumes:
            with path.open(newline="") as file:
                self.metrics_keys = next(csv.reader(file), [])


class CSVLogger(loggers.CSVLogger):
    """Lightning's, with a writer of the class `writer`."""

    writer: type[ExperimentWriter] = ExperimentWriter

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        if self._experiment is None:
            self._experiment = self.writer(log_dir=self.log_dir)
        return self._experiment
