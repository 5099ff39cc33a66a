"""A run that was stopped and resumed ends as one that was not."""

from __future__ import annotations

import math
import os
import shutil
import signal
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch

from musicgen.errors import UserError
from tests.training.conftest import assert_equal, runner, saved

# The best of `max` is the first validation's loss, so that a later one must not replace it.
SETTINGS = ("trainer.max_steps=9", "scheduler.max_steps=9", "callbacks.best.mode=max")


class Stop(pl.Callback):
    """Stop a run as a user or a failure would."""

    def __init__(self, step: int, how: str) -> None:
        self.step, self.how = step, how

    def on_train_batch_start(self, trainer, *args) -> None:
        if self.how == "signal" and trainer.global_step == self.step - 1:
            os.kill(os.getpid(), signal.SIGINT)

    def on_validation_batch_end(self, trainer, *args) -> None:
        if self.how == "validation" and trainer.global_step == self.step:
            raise MemoryError


def best(folder: Path) -> tuple[float, dict[str, torch.Tensor]]:
    """The best checkpoint: its score, as the file itself tells it, and its weights."""
    checkpoint = saved(folder, "best")
    (state,) = (s for s in checkpoint["callbacks"].values() if "best_model_score" in s)
    return float(state["best_model_score"]), checkpoint["state_dict"]


@pytest.fixture(scope="module")
def uninterrupted(config, tmp_path_factory):
    """The metrics of a whole run, and its folder."""
    root = tmp_path_factory.mktemp("uninterrupted")
    return runner(config, root)("full", *SETTINGS), root / "full"


@pytest.mark.parametrize(
    ("step", "how", "place"),
    [
        (3, "end", "same"),
        (3, "end", "moved"),
        (4, "end", "same"),
        (3, "signal", "same"),
        (5, "signal", "copied"),
        (3, "validation", "same"),
        (6, "validation", "same"),
    ],
)
def test_the_best_is_that_of_an_uninterrupted_run(run, uninterrupted, tmp_path, step, how, place):
    rows, full = uninterrupted
    losses = {s: float(row["val/loss"]) for s, row in rows.items() if "val/loss" in row}
    assert list(losses) == [2, 5, 8]
    assert losses[2] > losses[5] > losses[8]
    if how == "end":
        run("first", *SETTINGS, f"trainer.max_steps={step}")
    else:
        stop = f"+callbacks.stop={{_target_:{__name__}.Stop,step:{step},how:{how}}}"
        with pytest.raises((KeyboardInterrupt, MemoryError)):
            run("first", *SETTINGS, stop)
    assert saved(tmp_path / "first")["global_step"] == step
    name = "first"
    if place != "same":
        name = "elsewhere"
        (shutil.move if place == "moved" else shutil.copytree)(tmp_path / "first", tmp_path / name)
    rows = run(name, *SETTINGS, resume=tmp_path / name / "checkpoints/last.ckpt")
    score, weights = best(tmp_path / name)
    full_score, full_weights = best(full)
    assert score == full_score == pytest.approx(losses[2], abs=1e-6)
    assert all(torch.equal(weights[key], full_weights[key]) for key in full_weights)
    assert float(rows[8]["val/loss"]) == losses[8]
    assert float(rows[step]["train/loss"]) > 0
    if place == "copied":
        assert best(tmp_path / "first")[0] == full_score


class Retune(pl.Callback):
    """Set the optimizer's settings before each step from `step` on."""

    def __init__(self, step: int, **settings: float) -> None:
        self.step, self.settings = step, settings

    def on_train_batch_start(self, trainer, *args) -> None:
        if trainer.global_step >= self.step:
            trainer.optimizers[0].param_groups[0].update(self.settings)


def test_new_settings_of_the_optimizer_apply_from_the_first_step_on(run, tmp_path):
    constant = ("scheduler.warmup_steps=0", "optimizer.lr=1e-2", "scheduler.min_lr=1")
    new = {"lr": 3e-3, "weight_decay": 0.5}
    retune = f"+callbacks.retune={{_target_:{__name__}.Retune,step:4,lr:3e-3,weight_decay:0.5}}"
    run("full", *SETTINGS, *constant, "optimizer=adamw", retune)
    run("first", *SETTINGS, *constant, "optimizer=adamw", "trainer.max_steps=4")
    last = tmp_path / "first/checkpoints/last.ckpt"
    given = (f"optimizer.{name}={value}" for name, value in new.items())
    run("second", *SETTINGS, *constant, "optimizer=adamw", *given, resume=last)
    second = saved(tmp_path / "second")
    assert_equal(second, saved(tmp_path / "full"))
    group = second["optimizer_states"][0]["param_groups"][0]
    assert {name: group[name] for name in new} == new
    assert second["musicgen"]["config"]["optimizer"]["lr"] == new["lr"]


def test_a_new_schedule_applies_at_the_step_of_the_checkpoint(run, tmp_path):
    run("first", "optimizer=adam", "trainer.max_steps=4", "scheduler.max_steps=4")
    last = tmp_path / "first/checkpoints/last.ckpt"
    new = (
        "optimizer=adam",
        "optimizer.lr=1e-2",
        "scheduler.warmup_steps=2",
        "scheduler.min_lr=4e-3",
    )
    rows = run("first", "trainer.max_steps=8", *new, resume=last)
    rates = [float(rows[step]["lr-Adam"]) for step in range(4, 8)]
    # Half a cosine from step 2 to step 8, from 1e-2 to 4e-3.
    cosines = [(1 + math.cos(math.pi * (step - 2) / 6)) / 2 for step in range(4, 8)]
    assert rates == pytest.approx([4e-3 + 6e-3 * cosine for cosine in cosines])


def test_a_longer_cooldown_begins_later(run, tmp_path):
    settings = ("optimizer=adam", "optimizer.lr=1e-2", "scheduler=warmup_cooldown")
    run("first", *settings, "scheduler.warmup_steps=0", "trainer.max_steps=4")
    last = tmp_path / "first/checkpoints/last.ckpt"
    rows = run("first", *settings, "scheduler.warmup_steps=0", "trainer.max_steps=10", resume=last)
    rates = [float(rows[step]["lr-Adam"]) for step in range(4, 10)]
    assert rates == pytest.approx([1e-2, 1e-2, 1e-2, 7.5e-3, 5e-3, 2.5e-3])


def test_another_optimizer_is_refused(run, tmp_path):
    run("first", "optimizer=adam", "trainer.max_steps=2")
    last = tmp_path / "first/checkpoints/last.ckpt"
    for new, message in (
        (("optimizer=adamw",), r"the run has optimizer=adam \(not adamw\)"),
        (("optimizer=adam", "+optimizer.amsgrad=true"), r"optimizer.amsgrad=null \(not True\)"),
    ):
        with pytest.raises(UserError, match=rf"last\.ckpt: .*{message}.* with init="):
            run("first", "trainer.max_steps=3", *new, resume=last)


def test_a_damaged_best_checkpoint_is_replaced(run, tmp_path, capsys):
    run("first", *SETTINGS, "trainer.max_steps=4")
    file = tmp_path / "first/checkpoints/best.ckpt"
    file.write_bytes(file.read_bytes()[:1000])
    run("first", *SETTINGS, resume=file.parent / "last.ckpt")
    assert "best.ckpt: not a checkpoint of train.py, or a damaged one" in capsys.readouterr().err
    assert saved(tmp_path / "first", "best")["global_step"] == 6


def test_settings_that_differ_are_shown(run, tmp_path, capsys):
    run("first", "trainer.max_steps=2", "scheduler.max_steps=9")
    (tmp_path / "first").rename(tmp_path / "moved")
    last = tmp_path / "moved/checkpoints/last.ckpt"
    run("moved", "trainer.max_steps=2", "scheduler.max_steps=9", resume=last)
    assert "from step" not in capsys.readouterr().err  # its folder does not count
    new = ("loader.batch_size=1", "callbacks.redraw_features.probability=0.1", "optimizer.lr=0.1")
    run("moved", "trainer.max_steps=3", "scheduler.max_steps=9", *new, resume=last)
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "from step" in line)
    assert line == (
        "from step 2 on: optimizer.lr=0.1 (was 0.02), loader.batch_size=1 (was 2), "
        "trainer.max_steps=3 (was 2), callbacks.redraw_features.probability=0.1 (was 0.05)"
    )
