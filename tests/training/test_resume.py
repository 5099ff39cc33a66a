"""A run that was stopped and resumed ends as one that was not."""

import math
import shutil
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch

from musicgen.errors import UserError
from tests.training.conftest import assert_equal, runner, saved, stop

# The best of `max` is the first validation's loss, so that a later one must not replace it.
SETTINGS = ("trainer.max_steps=9", "scheduler.max_steps=9", "callbacks.best.mode=max")


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
    [(3, "end", "moved"), (5, "signal", "copied"), (3, "validation", "same")],
)
def test_the_best_is_that_of_an_uninterrupted_run(run, uninterrupted, tmp_path, step, how, place):
    rows, full = uninterrupted
    losses = {s: float(row["val/loss"]) for s, row in rows.items() if "val/loss" in row}
    assert list(losses) == [2, 5, 8]  # not again at the end
    assert losses[2] > losses[5] > losses[8]
    if how == "end":
        run("first", *SETTINGS, f"trainer.max_steps={step}")
    else:
        with pytest.raises((KeyboardInterrupt, MemoryError)):
            run("first", *SETTINGS, stop(step, how))
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
    """Set those of the optimizer's groups of parameters before each step from `step` on."""

    def __init__(self, step: int, groups: list[dict[str, float]]) -> None:
        self.step, self.groups = step, groups

    def on_train_batch_start(self, trainer, *args) -> None:
        if trainer.global_step >= self.step:
            groups = trainer.optimizers[0].param_groups
            for group, settings in zip(groups, self.groups, strict=True):
                group.update(settings)


def test_new_settings_of_the_optimizer_apply_from_the_first_step_on(run, tmp_path):
    settings = (*SETTINGS, "optimizer=muon", "scheduler.warmup_steps=0", "scheduler.min_lr=1")
    new = {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.5}
    groups = "[{lr:0.01,momentum:0.9,weight_decay:0.5},{lr:1e-4}]"
    run("full", *settings, f"+callbacks.r={{_target_:{__name__}.Retune,step:4,groups:{groups}}}")
    run("first", *settings, "trainer.max_steps=4")
    last = tmp_path / "first/checkpoints/last.ckpt"
    given = (f"optimizer.{name}={value}" for name, value in (new | {"adamw_lr": 1e-4}).items())
    run("second", *settings, *given, resume=last)
    second = saved(tmp_path / "second")
    assert_equal(second, saved(tmp_path / "full"))
    matrices, others = second["optimizer_states"][0]["param_groups"]
    assert {name: matrices[name] for name in new} == new
    assert (others["lr"], others["betas"]) == (1e-4, (0.9, 0.95))
    assert second["musicgen"]["config"]["optimizer"]["lr"] == new["lr"]


COSINE = ("scheduler=warmup_cosine", "scheduler.warmup_steps=2", "scheduler.min_lr=4e-3")
COOLDOWN = ("scheduler=warmup_cooldown", "scheduler.warmup_steps=0")
CONSTANT = ("scheduler=constant",)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        # Half a cosine from step 2 to step 8, from 1e-2 to 4e-3.
        ((), COSINE, [7 + 3 * math.cos(math.pi * (step - 2) / 6) for step in range(4, 8)]),
        (COOLDOWN, COOLDOWN, [10, 10, 20 / 3, 10 / 3]),  # it begins later than that of 4 steps
        (CONSTANT, (*CONSTANT, "scheduler.factor=0.5"), [5, 5, 5, 5]),
    ],
)
def test_a_new_schedule_applies_at_the_step_of_the_checkpoint(
    run, tmp_path, before, after, expected
):
    run("first", "optimizer=adam", *before, "trainer.max_steps=4")
    last = tmp_path / "first/checkpoints/last.ckpt"
    new = ("optimizer=adam", "optimizer.lr=1e-2", "trainer.max_steps=8")
    rows = run("first", *new, *after, resume=last)
    rates = [1000 * float(rows[step]["lr-Adam"]) for step in range(4, 8)]
    assert rates == pytest.approx(expected)


def test_other_settings_that_need_another_state_are_refused(run, tmp_path):
    run("first", "optimizer=adam", "trainer.max_steps=2")
    last = tmp_path / "first/checkpoints/last.ckpt"
    new = ("optimizer=adam", "+optimizer.amsgrad=true")
    message = r"last\.ckpt: .*optimizer.amsgrad=null \(not True\).* with init="
    with pytest.raises(UserError, match=message):
        run("first", "trainer.max_steps=3", *new, resume=last)


def test_a_damaged_best_or_one_of_another_length_is_replaced(run, tmp_path, capsys, monkeypatch):
    run("first", *SETTINGS, "trainer.max_steps=4")
    file = tmp_path / "first/checkpoints/best.ckpt"
    file.write_bytes(file.read_bytes()[:1000])
    run("first", *SETTINGS, resume=file.parent / "last.ckpt")
    assert "best.ckpt: not a checkpoint of train.py, or a damaged one" in capsys.readouterr().err
    assert saved(tmp_path / "first", "best")["global_step"] == 6
    monkeypatch.setattr("musicgen.cli.build.given_overrides", lambda: ["loader.length=16"])
    settings = (*SETTINGS, "trainer.max_steps=12", "loader.length=16")
    run("first", *settings, resume=file.parent / "last.ckpt")
    assert saved(tmp_path / "first", "best")["global_step"] == 9


def test_a_run_by_epochs_is_saved_and_validated_after_each(run, tmp_path, capsys):
    settings = ("trainer.max_steps=6", "scheduler.max_steps=6", "loader.batches_per_epoch=3")
    settings += ("callbacks=early_stopping",)
    settings += ("trainer.val_check_interval=1.0", "trainer.check_val_every_n_epoch=1")
    callback = "pytorch_lightning.callbacks.GradientAccumulationScheduler"
    settings += (f"+callbacks.by_epoch={{_target_:{callback},scheduling:{{0:1}}}}",)
    last = tmp_path / "first/checkpoints/last.ckpt"
    with pytest.raises(KeyboardInterrupt):
        run("first", *settings, stop(5, "interrupt"))
    assert saved(tmp_path / "first")["global_step"] == 3
    with pytest.raises(MemoryError):
        run("first", *settings, stop(6, "validation"), resume=last)
    run("first", *settings, resume=last)
    assert saved(tmp_path / "first", "best")["global_step"] == 6
    rows = run("first", *settings, "trainer.max_steps=9", resume=last)
    (patience,) = (x for x in saved(tmp_path / "first")["callbacks"].values() if "wait_count" in x)
    assert patience["best_score"] == pytest.approx(float(rows[5]["val/loss"]))
    settings += ("callbacks.early_stopping.patience=1", "+callbacks.early_stopping.min_delta=9")
    run("first", *settings, "trainer.max_steps=99", resume=last)
    told = capsys.readouterr().err
    assert "val/loss has not improved in 1 validation\n" in told
    longer = f"resume={tmp_path / 'first'} callbacks.early_stopping.patience=2\n"
    assert told.endswith(longer)


def test_early_stopping_starts_again_with_another_length(run, tmp_path, monkeypatch):
    settings = (*SETTINGS, "callbacks=early_stopping")
    before = run("first", *settings, "trainer.max_steps=4")
    monkeypatch.setattr("musicgen.cli.build.given_overrides", lambda: ["loader.length=16"])
    last = tmp_path / "first/checkpoints/last.ckpt"
    rows = run("first", *settings, "loader.length=16", "trainer.max_steps=9", resume=last)
    assert float(before[2]["val/loss"]) < float(rows[5]["val/loss"])
    (state,) = (x for x in saved(tmp_path / "first")["callbacks"].values() if "wait_count" in x)
    assert state["best_score"] == pytest.approx(float(rows[5]["val/loss"]))


def test_a_run_that_is_only_tested_has_its_best_weights(run, tmp_path):
    tested = run("first", *SETTINGS, "test=true")[9]["test/loss"]
    (tmp_path / "first/metrics.csv").unlink()
    last = tmp_path / "first/checkpoints/last.ckpt"
    assert run("first", "train=false", "test=true", resume=last)[0]["test/loss"] == tested
