"""metrics.csv over several sessions of a run."""

from __future__ import annotations

import csv
from pathlib import Path

from musicgen.training.monitoring.logger import CSVLogger


def log(folder: Path, *rows: tuple[int, dict[str, float]]) -> list[tuple[int, str]]:
    """Log rows in a session of their own; return step and column of every value in the file."""
    logger = CSVLogger(folder, name="", version="")
    for step, values in rows:
        logger.log_metrics(values, step)
    logger.save()
    with (folder / "metrics.csv").open(newline="") as file:
        found = [{k: v for k, v in row.items() if v} for row in csv.DictReader(file)]
    return [(int(row.pop("step")), *row) for row in found]  # type: ignore[misc]


def test_a_resumed_run_repeats_no_rows(tmp_path: Path) -> None:
    train = [(step, {"train/loss": 1.0}) for step in range(4)]
    validation = (1, {"val/loss": 1.0})
    log(tmp_path, *train[:2], validation, *train[2:])
    # Killed after step 4; the checkpoint is that of step 2, whose validation comes first.
    with (tmp_path / "metrics.csv").open("ab") as file:
        file.write(b"0,1.0,2,3,4\n\xff\n4")
    first = [(0, "train/loss"), (1, "train/loss"), (1, "val/loss")]
    assert log(tmp_path, validation, train[2]) == [*first, (2, "train/loss")]
    # Without a validation, the rows of the first step are replaced, with new columns too.
    new = (2, {"lr": 0.5})
    assert log(tmp_path, new, train[2]) == [*first, (2, "lr"), (2, "train/loss")]


def test_a_test_alone_keeps_all_rows(tmp_path: Path) -> None:
    log(tmp_path, (5, {"train/loss": 1.0}))
    assert log(tmp_path, (0, {"test/loss": 1.0})) == [(5, "train/loss"), (0, "test/loss")]
