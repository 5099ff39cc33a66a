"""Losses, gradients and weights that are NaN or infinite."""

import math

import pytest
import pytorch_lightning as pl
import torch

from musicgen.errors import UserError
from musicgen.training.tasks import LanguageModeling
from tests.training.conftest import assert_equal, saved

CALM = ("callbacks.redraw_features.probability=0", "scheduler.max_steps=9", "model.dropout=0")


@pytest.fixture
def poison(monkeypatch):
    """Multiply the loss of given training batches."""

    def poison(factor: float, batches) -> None:
        seen: list[torch.Tensor] = []

        def loss(task, model, batch, noise, loss=LanguageModeling.loss):
            value = loss(task, model, batch, noise)
            if model.training:
                seen.append(batch.tokens)
                return value * factor if len(seen) - 1 in batches else value
            return value

        monkeypatch.setattr(LanguageModeling, "loss", loss)

    return poison


def test_a_step_is_skipped(run, tmp_path, poison, capsys):
    run("before", *CALM, "trainer.max_steps=2", "trainer.accumulate_grad_batches=2")
    poison(math.inf, [5])
    settings = (*CALM, "trainer.accumulate_grad_batches=2", "callbacks.guard.limit=2")
    rows = run("run", *settings, "trainer.max_steps=3")
    last = saved(tmp_path / "run")
    assert last["global_step"] == 3
    assert_equal(last, saved(tmp_path / "before"))  # the third step changed nothing
    shown = capsys.readouterr().err
    assert "step 3: the loss or its gradients are NaN or infinite; it is skipped" in shown
    assert float(rows[2]["train/skipped_steps"]) == 1
    assert math.isfinite(float(rows[1]["train/gradient_norm"]))


class Fuse(pl.Callback):
    """Fuse the optimizer, as on a GPU: it skips the step by itself."""

    def on_train_start(self, trainer, pl_module) -> None:
        for group in trainer.optimizers[0].param_groups:
            group["fused"] = True


def test_a_fused_optimizer_skips_the_step_itself(run, tmp_path, poison, capsys):
    fused = (*CALM, "optimizer=adam", f"+callbacks.fuse._target_={__name__}.Fuse")
    run("before", *fused, "trainer.max_steps=2")
    poison(math.nan, [2])
    rows = run("run", *fused, "trainer.max_steps=3")
    last = saved(tmp_path / "run")
    assert last["global_step"] == 3
    assert_equal(last, saved(tmp_path / "before"))
    assert "step 3: the loss or its gradients are NaN or infinite" in capsys.readouterr().err
    assert float(rows[2]["train/skipped_steps"]) == 1
    assert {float(each["step"]) for each in last["optimizer_states"][0]["state"].values()} == {2}


def test_training_stops_after_some_in_a_row_with_finite_weights(run, tmp_path, poison):
    poison(math.nan, {1, 2, *range(4, 99)})  # two in a row do not stop it
    with pytest.raises(UserError, match=r"^step 7: .*NaN or infinite in 3 steps in a row"):
        run("run", *CALM, "trainer.max_steps=20")
    last = saved(tmp_path / "run")
    assert last["global_step"] == 6
    assert all(tensor.isfinite().all() for tensor in last["state_dict"].values())


class Overflow(pl.Callback):
    """Let a weight overflow in step 3."""

    def on_before_zero_grad(self, trainer, pl_module, optimizer) -> None:
        if trainer.global_step == 3:
            pl_module.model.head.weight.data[0, 0] = math.inf


@pytest.mark.parametrize("every", [1, 3])
def test_weights_that_are_not_finite_are_never_saved(run, tmp_path, every):
    settings = (*CALM, "trainer.val_check_interval=2", f"callbacks.last.every={every}")
    overflow = f"+callbacks.overflow={{_target_:{__name__}.Overflow}}"
    with pytest.raises(UserError, match=r"the weights became NaN or infinite \(model.head.weight"):
        run("run", *settings, overflow, "trainer.max_steps=8")
    for name in ("last", "best"):
        weights = saved(tmp_path / "run", name)
        assert weights["global_step"] <= 3
        assert all(tensor.isfinite().all() for tensor in weights["state_dict"].values())


class Huge(pl.Callback):
    def on_train_batch_start(self, *_):
        torch.ones(2**60)


def test_an_allocation_that_fails_is_one_line_with_cures(run):
    cures = r"more memory than there is: .*loader\.batch_size .* recompute=true"
    with pytest.raises(UserError, match=cures):
        run("huge", f"+callbacks.huge._target_={__name__}.Huge", "trainer.max_steps=1")
