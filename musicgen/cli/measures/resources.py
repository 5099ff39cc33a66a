"""The measure `resources` of `evaluate`: what training took."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from musicgen.checkpoints import CheckpointContent, errors_name, find_checkpoint, read_checkpoint
from musicgen.cli.measures.compared import name_runs
from musicgen.errors import UserError
from musicgen.report.tables import write_latex

Row = dict[str, Any]


def resources(cfg: DictConfig, out: Path) -> list[Row]:
    """Tell what each run took until its lowest validation loss (Liutkus et al. 2021, table 5).

    They are read from its `metrics.csv`; the table is also written as LaTeX.
    """
    paths = [str(path) for path in cfg.runs or [cfg.checkpoint]]
    setting = "runs" if cfg.runs else "checkpoint"
    configs, rows = [], []
    for path in paths:
        file = find_checkpoint(path, setting=setting)
        with errors_name(file):
            configs.append(CheckpointContent.from_plain(read_checkpoint(file)).config)
        rows.append(best_row(file.parent.parent / "metrics.csv", f"{setting}={path}"))
    names = [name for _, name in name_runs(paths, configs)]
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
        with metrics.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row.get("val/loss")]
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
