"""Lightning's CSV logger, appending to the file of a resumed run."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from lightning_fabric.loggers.logger import rank_zero_experiment
from pytorch_lightning import loggers
from pytorch_lightning.loggers.csv_logs import ExperimentWriter


class _AppendingWriter(ExperimentWriter):
    def _check_log_dir_exists(self) -> None:
        """Take over the columns of an existing file, which Lightning's writer would delete."""
        path = Path(self.metrics_file_path)
        if path.is_file():
            with path.open(newline="") as file:
                self.metrics_keys = next(csv.reader(file), [])


class CSVLogger(loggers.CSVLogger):
    """Write `metrics.csv` in the run folder; append to an existing file."""

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        if self._experiment is None:
            self._experiment = _AppendingWriter(log_dir=self.log_dir)
        return self._experiment
