"""Private parts of Lightning that training calls, each with the reason.

`tests/training/test_lightning_compat.py` fails where a new version has changed one.
"""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl


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


def set_max_steps(trainer: pl.Trainer, max_steps: int) -> None:
    """Change the number of steps of a training that runs; `Trainer.max_steps` is read-only."""
    trainer.fit_loop.epoch_loop.max_steps = max_steps
