"""Resources: the time and memory that training took."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from musicgen.checkpoints import CheckpointContent, find_checkpoint, read_checkpoint
from musicgen.errors import UserError, errors_name
from musicgen.evaluation.measure import Inputs, Measure, Row
from musicgen.evaluation.runs import name_runs
from musicgen.files import read_csv
from musicgen.report.tables import write_latex


@dataclass(frozen=True)
class Resources(Measure):
    """What each run took until its lowest validation loss (Liutkus et al. 2021, table 5).

    It is read from the run's `metrics.csv`; the table is also written as LaTeX.
    """

    name = "resources"
    legend = (
        "until the lowest validation loss: epochs begun, hours with validations, most memory of "
        "tensors on a GPU, else of the whole process; n/a: the run did not record it"
    )

    def compute(self, inputs: Inputs, out: Path) -> list[Row]:
        paths, setting = inputs.checkpoints, "runs" if inputs.runs else "checkpoint"
        contents, rows = [], []
        for path in paths:
            file = find_checkpoint(path, setting=setting)
            with errors_name(file):
                contents.append(CheckpointContent.from_plain(read_checkpoint(file)))
            rows.append(best_row(file.parent.parent / "metrics.csv", f"{setting}={path}"))
        names = [name for _, name in name_runs(paths, contents)]
        rows = [{"run": name, **row} for name, row in zip(names, rows, strict=True)]
        write_latex(rows, out / "resources.tex")
        return rows


def best_row(metrics: Path, given: str) -> Row:
    """Return what a run took until its lowest validation loss.

    Args:
        metrics: its `metrics.csv`.
        given: the setting that named it, for errors.
    """
    try:
        rows = [row for row in read_csv(metrics) if row.get("val/loss")]
    except OSError as error:
        raise UserError(
            f"{given}: {metrics} cannot be read ({error.strerror}); give the folder of a run that "
            "was trained with logger=csv"
        ) from None
    if not rows:
        raise UserError(f"{given}: {metrics} has no validation loss; train for longer")
    best = min(rows, key=lambda row: float(row["val/loss"]))
    return {
        "epochs": int(best["epoch"]) + 1,
        "steps": int(best["step"]) + 1,
        "hours": float(best.get("train/hours") or math.nan),
        "GB": float(best.get("train/gigabytes") or math.nan),
        "validation loss": float(best["val/loss"]),
    }
