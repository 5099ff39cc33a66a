"""Lightning's CSV logger, appending to the file of a resumed run."""

import csv
import io
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_fabric.loggers.logger import rank_zero_experiment
from pytorch_lightning import loggers
from pytorch_lightning.loggers.csv_logs import ExperimentWriter

from musicgen.errors import UserError
from musicgen.files import write_text

_LONGEST_ROW = 2**16  # bytes


class _Writer(ExperimentWriter):
    """Append to an existing file, which Lightning's writer deletes, one row per step."""

    def _check_log_dir_exists(self) -> None:
        path = Path(self.metrics_file_path)
        self.resumes = path.is_file()
        if self.resumes:
            with path.open(newline="", errors="replace") as file:
                self.metrics_keys = next(csv.reader(file), [])

    def save(self) -> None:
        if self.resumes and self.metrics:
            self.resumes = False
            if "test/loss" not in self.metrics[0]:  # a test alone repeats nothing
                self._drop_repeated(self.metrics[0])
        try:
            if self.metrics:
                self._join_rows()
            super().save()
        except OSError as error:
            raise UserError(
                f"{self.metrics_file_path}: cannot be written ({error.strerror}); free some space, "
                "then resume the run"
            ) from None

    def _join_rows(self) -> None:
        """Join the rows of each step; rate, loss and validation of a step are logged apart."""
        rows = {row["step"]: dict[str, Any]() for row in self.metrics}
        path = Path(self.metrics_file_path)
        if path.is_file():
            with path.open("r+b") as file:
                file.seek(-min(path.stat().st_size, _LONGEST_ROW), os.SEEK_END)
                tail = file.read().decode(errors="replace").removesuffix("\r\n")
                last = tail.rpartition("\n")[2]
                saved = dict(zip(self.metrics_keys, next(csv.reader([last]), []), strict=False))
                if (step := saved.pop("step", "")).isdecimal() and int(step) in rows:
                    rows[int(step)] = {name: value for name, value in saved.items() if value}
                    file.seek(-len(last.encode()) - 2, os.SEEK_END)
                    file.truncate()
        for row in self.metrics:
            rows[row["step"]] |= row
        self.metrics = list(rows.values())

    def _drop_repeated(self, first: Mapping[str, Any]) -> None:
        """Drop damaged rows, and those from `first` on.

        If `first` is a step's validation alone, the row of that step stays, and is joined with it.
        """

        def is_before(row: Mapping[str, str | None]) -> bool:
            number = row.get("step") or ""
            if not number.isdecimal() or None in [*row, *row.values()]:  # damaged, as by a kill
                return False
            return int(number) < first["step"] + ("val/loss" in first)

        self._rewrite(self.metrics_keys, is_before)

    def _rewrite_with_new_header(self, fieldnames: list[str]) -> None:
        self._rewrite(fieldnames, lambda row: True)

    def _rewrite(
        self, columns: Sequence[str], keep: Callable[[Mapping[str, str | None]], bool]
    ) -> None:
        """Write the file with these columns and the rows to keep."""
        path = Path(self.metrics_file_path)
        with path.open(newline="", errors="replace") as file:
            kept = [row for row in csv.DictReader(file) if keep(row)]
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns)
        writer.writeheader()
        writer.writerows(kept)
        write_text(path, text.getvalue())


class CSVLogger(loggers.CSVLogger):
    """Write `metrics.csv` in the run folder; append to an existing file."""

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        if self._experiment is None:
            self._experiment = _Writer(log_dir=self.log_dir)
        return self._experiment
