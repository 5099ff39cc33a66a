"""`find=learning_rate` and `find=batch_size`: try values, and train nothing."""

from __future__ import annotations

from pathlib import Path

import pytorch_lightning as pl
from hydra.utils import instantiate
from omegaconf import DictConfig

from musicgen.console import log
from musicgen.errors import UserError
from musicgen.training.finders import TRAINER, find_batch_size, find_learning_rate
from musicgen.training.module import TrainingModule
from musicgen.validation import check_choice


def find(cfg: DictConfig, module: TrainingModule, data: pl.LightningDataModule) -> None:
    """Name a learning rate or a batch size to begin with."""
    check_choice("find", cfg.find, ("learning_rate", "batch_size"))
    trainer: pl.Trainer = instantiate(cfg.trainer, **TRAINER)
    if trainer.world_size > 1:
        raise UserError(f"find={cfg.find} takes one device; give trainer.devices=1")
    log(f"trying values of {cfg.find}")
    if cfg.find == "learning_rate":
        plot = Path(cfg.paths.output_dir) / "learning_rates.png"
        rate = find_learning_rate(trainer, module, data, plot)
        log(f"the loss falls fastest at optimizer.lr={rate:.2g}; {plot} shows it")
    else:
        size, is_largest = find_batch_size(trainer, module, data, cfg.loader.batch_size)
        text = "the largest that fits is" if is_largest else "tried up to"
        log(f"{text} loader.batch_size={size}, of {cfg.loader.length} tokens each")
