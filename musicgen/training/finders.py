"""Values to begin with: a learning rate, and the largest batch that fits into memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
from numpy.typing import NDArray
from pytorch_lightning.tuner import Tuner

from musicgen.errors import UserError
from musicgen.memory import total_memory

# Of a trainer that only tries values.
TRAINER = {
    "callbacks": [],
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "val_check_interval": 10**9,
}
_SKIPPED = 10  # the first losses follow from the initial weights
_NUM_SIZES = 8  # each twice the one before
_SHARE = 0.8  # of a machine's memory that a batch may take


def find_learning_rate(
    trainer: pl.Trainer, module: pl.LightningModule, data: pl.LightningDataModule, plot: Path
) -> float:
    """Return where the loss falls fastest in a learning-rate range test (Smith 2017); plot it.

    Lightning trains a step at each of a hundred rising rates, without the schedule, and ends early
    once the smoothed loss is four times the lowest. The weights are restored afterwards.
    """
    data.prepare_data()
    with redirect_stderr(StringIO()):  # Lightning's progress bar
        finder = Tuner(trainer).lr_find(
            module, datamodule=data, min_lr=1e-6, max_lr=1, update_attr=False
        )
    assert finder is not None
    best = steepest(np.array(finder.results["lr"]), np.array(finder.results["loss"]))
    figure: Any = finder.plot()
    figure.axes[0].axvline(best, color="grey", linestyle="--")
    plot.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(plot)
    return best


def steepest(rates: NDArray[np.float64], losses: NDArray[np.float64]) -> float:
    """Return the rate at which the loss falls fastest over the rate's logarithm."""
    rates, losses = rates[_SKIPPED:], losses[_SKIPPED:]
    kept = np.isfinite(losses)
    if kept.sum() < 2:
        raise UserError("find=learning_rate: too few steps had a finite loss")
    slopes = np.gradient(losses[kept], np.log(rates[kept]))
    return float(rates[kept][slopes.argmin()])


def find_batch_size(
    trainer: pl.Trainer, module: pl.LightningModule, data: pl.LightningDataModule, first: int
) -> tuple[int, bool]:
    """Double the batch size from `first` on while two steps fit into memory.

    Returns:
        The largest size that fits, and whether the next one was tried and did not.
    """
    with _limited_memory(trainer), redirect_stderr(StringIO()):
        size = Tuner(trainer).scale_batch_size(
            module, datamodule=data, steps_per_trial=2, init_val=first, max_trials=_NUM_SIZES
        )
    assert size is not None
    return size, size < first * 2 ** (_NUM_SIZES - 1)


@contextmanager
def _limited_memory(trainer: pl.Trainer) -> Iterator[None]:
    """Let allocations on a CPU fail beyond a share of the memory; Linux would end the process."""
    if sys.platform != "linux" or trainer.strategy.root_device.type != "cpu":
        yield
        return
    import resource  # not on Windows

    total: Any = total_memory()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (int(_SHARE * total), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
