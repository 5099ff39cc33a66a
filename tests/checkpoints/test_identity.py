"""The identity of a run: the same for other seeds and folders, another for other settings."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from musicgen.checkpoints import run_identity

SAME = ["seed=2", "paths.data_dir=/elsewhere", "trainer.log_every_n_steps=1", "logger=none"]
OTHER = [
    *("model.dim=64", "position=none", "optimizer.lr=0.1", "scheduler.warmup_steps=1"),
    *("trainer.max_steps=7", "trainer.accumulate_grad_batches=2", "data.num_pieces=7"),
    *("tokenizer.max_transposition=1", "init=other.ckpt", "callbacks=averaged"),
    *("callbacks.redraw_features.probability=0.1",),
]


def identity(config, *overrides: str) -> str:
    cfg = config("train", "paths.output_dir=out", *overrides)
    return run_identity(OmegaConf.to_container(cfg, resolve=True))


@pytest.mark.parametrize("override", SAME)
def test_seeds_folders_and_logging_do_not_count(config, override):
    assert identity(config, override) == identity(config)


@pytest.mark.parametrize("override", OTHER)
def test_settings_of_model_data_and_training_count(config, override):
    assert identity(config, override) != identity(config)
