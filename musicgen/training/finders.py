"""Values to begin with: a learning rate, and the largest batch that fits into memory."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytorch_lightning as pl
from numpy.typing import NDArray
from pytorch_lightning.tuner import Tuner

from musicgen.console import console
from musicgen.errors import UserError
from musicgen.files import atomic_path
from musicgen.memory import total_memory

# Of a trainer that only tries values.
TRAINER = {
    "callbacks": [],
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "val_check_interval": 10**9,
}
_LOWEST, _HIGHEST = 1e-6, 1.0  # learning rates
_NUM_RATES, _SKIPPED = 100, 10  # the first losses follow from the initial weights
_NUM_SIZES = 8  # each twice the one before
_SHARE = 0.8  # of a machine's memory that a batch may take


class RateTest(NamedTuple):
    """A learning-rate range test (Smith 2017): a step at each rate, and the smoothed losses."""

    rates: NDArray[np.float64]
    losses: NDArray[np.float64]

    @property
    def best(self) -> float:
        """The rate at which the loss falls fastest over the rate's logarithm."""
        rates, losses = self.rates[_SKIPPED:], self.losses[_SKIPPED:]
        kept = np.isfinite(losses)
        if kept.sum() < 2:
            raise UserError(f"find=learning_rate: only {len(self.losses)} steps had a finite loss")
        slopes = np.gradient(losses[kept], np.log(rates[kept]))
        return float(rates[kept][slopes.argmin()])

    @property
    def lowest(self) -> float:
        """The rate at which the loss is lowest."""
        return float(self.rates[np.nanargmin(self.losses)])

    def plot(self, path: Path) -> None:
        """Plot the losses over the rates."""
        from matplotlib.figure import Figure  # slow to import

        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.add_subplot()
        axes.semilogx(self.rates, self.losses)
        axes.axvline(self.best, color="grey", linestyle="--", label=f"{self.best:.2g}")
        axes.set(xlabel="learning rate", ylabel="smoothed training loss (nats)")
        axes.legend()
        with atomic_path(path) as temporary:
            figure.savefig(temporary, dpi=150)


def find_learning_rate(
    trainer: pl.Trainer, module: pl.LightningModule, data: pl.LightningDataModule
) -> RateTest:
    """Train a step at each of a hundred rising learning rates, without the schedule.

    It ends early once the loss is four times the lowest. The weights are restored afterwards.
    """
    data.prepare_data()
    with _quiet():
        finder = Tuner(trainer).lr_find(
            module,
            datamodule=data,
            min_lr=_LOWEST,
            max_lr=_HIGHEST,
            num_training=_NUM_RATES,
            update_attr=False,
        )
    assert finder is not None
    results = finder.results
    rates, losses = np.array(results["lr"]), np.array(results["loss"])
    count = min(len(rates), len(losses))  # the last one may have ended it
    return RateTest(rates[:count], losses[:count])


def find_batch_size(
    trainer: pl.Trainer, module: pl.LightningModule, data: pl.LightningDataModule, first: int
) -> tuple[int, bool]:
    """Double the batch size from `first` on while two steps fit into memory.

    Returns:
        The largest size that fits, and whether the next one was tried and did not.
    """
    with _limited_memory(trainer), _quiet():
        size = Tuner(trainer).scale_batch_size(
            module, datamodule=data, steps_per_trial=2, init_val=first, max_trials=_NUM_SIZES
        )
    assert size is not None
    return size, size < first * 2 ** (_NUM_SIZES - 1)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leave out Lightning's messages, and its progress bar where there is no terminal."""
    log = logging.getLogger("lightning_fabric.utilities.cloud_io")
    level = log.level
    log.setLevel(logging.WARNING)
    hidden = contextlib.nullcontext() if console.is_terminal else redirect_stderr(StringIO())
    try:
        with hidden, warnings.catch_warnings(action="ignore"):
            yield
    finally:
        log.setLevel(level)


@contextlib.contextmanager
def _limited_memory(trainer: pl.Trainer) -> Iterator[None]:
    """Let allocations on a CPU fail beyond a share of the memory; Linux would end the process."""
    total = total_memory()
    if total is None or trainer.strategy.root_device.type != "cpu":
        yield
        return
    import resource  # not on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (int(_SHARE * total), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
