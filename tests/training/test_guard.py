"""Losses, gradients and weights that are NaN or infinite."""

import math
from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch

from musicgen.errors import UserError
from musicgen.training.guard import GuardSteps, out_of_memory_named, restoring_named
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


class Recorder:
    """Stands for a module: it keeps what is logged."""

    def __init__(self, *gradients: float) -> None:
        self.logged: list[tuple[str, float]] = []
        self.weights = [torch.nn.Parameter(torch.zeros(())) for _ in gradients]
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.grad = torch.tensor(gradient)
        self.weights.append(torch.nn.Parameter(torch.ones(())))  # without a gradient

    def parameters(self):
        return self.weights

    def log(self, name, value, **_) -> None:
        self.logged.append((name, float(value)))


def trainer_of(module, *, step=0, every=1, scale=None):
    scaler = None if scale is None else SimpleNamespace(get_scale=lambda: scale)
    return SimpleNamespace(
        strategy=None,
        world_size=1,
        is_global_zero=True,
        global_step=step,
        log_every_n_steps=every,
        lightning_module=module,
        precision_plugin=SimpleNamespace(scaler=scaler),
    )


def test_a_fused_optimizer_is_told_what_to_skip_and_the_steps_are_counted(capsys):
    guard, module = GuardSteps(limit=3), Recorder()
    counts = []
    for step, total in enumerate([1.0, math.nan, math.inf, 1.0, math.inf]):
        optimizer = SimpleNamespace()
        guard._skip_on_device(trainer_of(module, step=step), optimizer, torch.tensor(total))
        assert float(optimizer.found_inf) == (not math.isfinite(total))
        counts.append((guard._num_skipped, guard._in_row))
    assert counts == [(0, 0), (1, 1), (2, 2), (2, 0), (3, 1)]
    assert module.logged == [("train/skipped_steps", n) for n in (1.0, 2.0, 3.0)]
    shown = capsys.readouterr().err
    assert [f"step {n}: the loss" in shown for n in (1, 2, 3, 4, 5)] == [0, 1, 0, 0, 1]


def test_counts_of_a_fused_optimizer_are_read_every_few_steps(capsys):
    guard, module = GuardSteps(limit=3), Recorder()
    for step in range(1, 5):
        trainer = trainer_of(module, step=step, every=4)
        guard._skip_on_device(trainer, SimpleNamespace(), torch.tensor(math.nan if step > 2 else 0))
        assert guard._num_skipped == (2 if step == 4 else 0)
    assert "step 4: the loss or its gradients are NaN" in capsys.readouterr().err  # the first one
    for step in range(5, 13):  # one more, after which others are not skipped
        trainer = trainer_of(module, step=step, every=4)
        guard._skip_on_device(
            trainer, SimpleNamespace(), torch.tensor(0 if step != 10 else math.nan)
        )
    assert "one of 4 steps up to 13: the loss" in capsys.readouterr().err


PLAIN = SimpleNamespace(param_groups=[{}])  # an optimizer that is not fused


def skip(guard, module, loss=1.0, **options):
    guard.on_before_backward(None, module, torch.tensor(loss))
    guard.on_before_optimizer_step(trainer_of(module, **options), module, PLAIN)
    return [weight.grad for weight in module.weights]


def test_the_norm_of_the_gradients_is_logged_and_finite_steps_keep_them():
    guard, module = GuardSteps(limit=2), Recorder(3.0, 4.0)
    assert skip(guard, module) == [3.0, 4.0, None]
    assert module.logged == [("train/gradient_norm", 5.0)]
    assert (guard._num_skipped, guard._in_row) == (0, 0)


def test_gradients_of_a_bad_step_are_dropped_and_losses_of_a_step_do_not_stay():
    guard, module = GuardSteps(limit=2), Recorder(3.0, 4.0)
    assert skip(guard, module, math.nan) == [None, None, None]
    assert (guard._num_skipped, guard._in_row) == (1, 1)
    assert skip(guard, Recorder(math.inf), 1.0) == [None, None]
    assert (guard._num_skipped, guard._in_row) == (2, 2)
    with pytest.raises(UserError, match="infinite in 2 steps in a row"):
        guard.on_train_batch_end(trainer_of(module), None)
    assert skip(guard, Recorder(2.0)) == [2.0, None]
    assert (guard._num_skipped, guard._in_row) == (2, 0)
    guard.on_train_batch_end(trainer_of(module), None)


@pytest.mark.parametrize(("scale", "counted"), [(2.0, 0), (1.0, 1), (0.5, 1)])
def test_a_scaled_loss_counts_once_its_scale_cannot_fall(scale, counted):
    guard = GuardSteps(limit=2)
    assert skip(guard, Recorder(math.inf), scale=scale) == [None, None]
    assert guard._num_skipped == counted


def test_other_errors_stay_as_they_are():
    for error in (RuntimeError("shapes differ"), ValueError("can't allocate memory")):
        with pytest.raises(type(error), match=str(error)), out_of_memory_named():
            raise error
    for checkpoint in (None, "a.ckpt"):  # it does not come from Lightning's restoring
        with pytest.raises(KeyError), restoring_named(checkpoint):
            raise KeyError("x")
    with pytest.raises(UserError, match="more memory than there is"), out_of_memory_named():
        raise torch.OutOfMemoryError("CUDA")
