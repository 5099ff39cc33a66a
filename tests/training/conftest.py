"""Runs of the configurations in conf/ in this process."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from musicgen.cli import train

TINY = (
    "model.dim=16",
    "model.num_layers=2",
    "model.num_heads=2",
    "model.ff_dim=16",
    "model.dropout=0.1",
    "data.num_pieces=6",
    "loader.length=32",
    "loader.batch_size=2",
    "trainer.val_check_interval=3",
    "trainer.log_every_n_steps=1",
    "callbacks.memory=null",  # which runs the model before the first step
)


@pytest.fixture
def config_run(config, tmp_path):
    """Call train.py's main in a folder `run`."""

    def call(*overrides: str, name: str = "run", resume: Path | None = None) -> None:
        cfg = config("train", *TINY, *overrides)
        OmegaConf.update(cfg, "paths.output_dir", str(tmp_path / name))
        OmegaConf.update(cfg, "paths.data_dir", str(tmp_path / "data"))
        cfg.resume = None if resume is None else str(resume)
        train.main(cfg)

    return call


@pytest.fixture
def run(config_run, tmp_path):
    """Train in a folder `name`; return the rows of metrics.csv by step."""

    def run(name: str, *overrides: str, resume: Path | None = None) -> dict[int, dict[str, str]]:
        config_run(*overrides, name=name, resume=resume)
        rows: dict[int, dict[str, str]] = {}
        with (tmp_path / name / "metrics.csv").open() as file:
            for row in csv.DictReader(file):
                filled = {key: value for key, value in row.items() if value}
                rows.setdefault(int(row["step"]), {}).update(filled)
        return rows

    return run
