"""Runs of the configurations in conf/ in this process."""

import csv
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from omegaconf import OmegaConf

from musicgen.cli import train
from musicgen.models import Transformer

TINY = (
    *("model.dim=16", "model.num_layers=2", "model.num_heads=2", "model.ff_dim=16"),
    *("model.dropout=0.1", "data.num_pieces=6", "loader.length=32", "loader.batch_size=2"),
    *("trainer.val_check_interval=3", "trainer.log_every_n_steps=1"),
)

Rows = dict[int, dict[str, str]]


@pytest.fixture
def run(config, tmp_path):
    """Train in a folder `name` of the test's own."""
    return runner(config, tmp_path)


def saved(folder: Path, name: str = "last") -> dict[str, Any]:
    """Return a checkpoint of a run."""
    return torch.load(folder / f"checkpoints/{name}.ckpt", weights_only=True)


def assert_equal(found: dict[str, Any], expected: dict[str, Any], part: str = "state_dict") -> None:
    """Assert that two checkpoints hold the same tensors."""
    for name, tensor in expected[part].items():
        assert torch.equal(tensor, found[part][name]), name


class Stop(pl.Callback):
    """Stop a run as a user, a clock or a failure would."""

    def __init__(self, step: int, how: str) -> None:
        self.step, self.how = step, how

    def on_train_batch_start(self, trainer, *args) -> None:
        if self.how == "signal" and trainer.global_step == self.step - 1:
            os.kill(os.getpid(), signal.SIGINT)
        if self.how == "interrupt" and trainer.global_step == self.step:
            raise KeyboardInterrupt

    def on_validation_batch_end(self, trainer, *args) -> None:
        if self.how == "validation" and trainer.global_step == self.step:
            raise MemoryError


def stop(step: int, how: str) -> str:
    """Return the setting that stops a run."""
    return f"+callbacks.stop={{_target_:{__name__}.Stop,step:{step},how:{how}}}"


def small_transformer(vocab_size: int, **settings: Any) -> Transformer:
    """Build a model of a position, an attention and other settings."""
    sizes = {"dim": 16, "num_layers": 2, "num_heads": 2, "ff_dim": 16, "dropout": 0.0}
    return Transformer(vocab_size, **sizes | settings)


def runner(config, root: Path, base: Sequence[str] = TINY) -> Callable[..., Rows]:
    """Return a function that trains in a folder of `root`, and returns the metrics by step."""

    def run(name: str, *overrides: str, resume: Path | None = None) -> Rows:
        cfg = config("train", *base, *overrides)
        OmegaConf.update(cfg, "paths.output_dir", str(root / name))
        # The folder of all tests of a session, whose corpora are composed and encoded once.
        OmegaConf.update(cfg, "paths.data_dir", str(root.parent / "data"))
        cfg.resume = None if resume is None else str(resume)
        train.main(cfg)
        rows: Rows = {}
        with (root / name / "metrics.csv").open() as file:
            for row in csv.DictReader(file):
                filled = {key: value for key, value in row.items() if value}
                rows.setdefault(int(row["step"]), {}).update(filled)
        return rows

    return run
