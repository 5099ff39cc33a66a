"""A moving average of the weights."""

from typing import ClassVar

import pytorch_lightning as pl
import torch

from musicgen import load
from musicgen.errors import UserError
from musicgen.training.monitoring.samples import LogSamples
from tests.training.conftest import assert_equal, saved

ON = ("callbacks=averaged", "callbacks.weight_averaging.ema_decay=0.4", "scheduler.max_steps=6")
CURRENT = "current_model_state"


class Record(pl.Callback):
    """The weights after each step."""

    steps: ClassVar[list[dict[str, torch.Tensor]]] = []

    def on_train_start(self, *args) -> None:
        self.steps.clear()

    def on_train_batch_end(self, trainer, pl_module, *args) -> None:
        self.steps.append({k: v.clone() for k, v in pl_module.state_dict().items()})


def test_checkpoints_hold_the_average_by_hand(run, tmp_path):
    settings = ("trainer.val_check_interval=4", "callbacks.redraw_features.probability=1")
    record = f"+callbacks.record={{_target_:{__name__}.Record}}"
    rows = run("run", *ON, "trainer.max_steps=4", "test=true", *settings, record)
    checkpoint = saved(tmp_path / "run")
    names = [name for name, _ in load(tmp_path / "run").model.named_parameters()]
    for name in (f"model.{name}" for name in names):
        first, *others = (step[name] for step in Record.steps)
        expected = first
        for t, weights in enumerate(others, 1):
            decay = min(0.4, (1 + t) / (10 + t))
            expected = decay * expected + (1 - decay) * weights
        torch.testing.assert_close(checkpoint["state_dict"][name], expected)
        assert torch.equal(checkpoint[CURRENT][name], Record.steps[-1][name])
    assert not torch.equal(checkpoint["state_dict"][name], checkpoint[CURRENT][name])
    # What is validated and loaded is the average.
    best = saved(tmp_path / "run", "best")
    for name, tensor in load(tmp_path / "run/checkpoints/best.ckpt").model.state_dict().items():
        assert torch.equal(tensor, checkpoint["state_dict"][f"model.{name}"])
        assert torch.equal(tensor, best["state_dict"][f"model.{name}"])
    tested = run("tested", "train=false", "test=true", f"init={tmp_path}/run", *ON)
    assert float(rows[3]["val/loss"]) > 0
    assert tested[0]["test/loss"] == rows[4]["test/loss"]
    # Random features are not averaged.
    omegas = [name for name in checkpoint["state_dict"] if name.endswith("omega")]
    assert omegas
    for name in omegas:
        assert torch.equal(checkpoint["state_dict"][name], Record.steps[-1][name])


def test_samples_are_of_the_average(run, tmp_path, monkeypatch):
    def sample(self, module, data):
        weights.update({name: tensor.clone() for name, tensor in module.state_dict().items()})
        raise UserError("not written")

    weights = {}
    monkeypatch.setattr(LogSamples, "_sample", sample)
    run("run", *ON, "trainer.max_steps=3", "callbacks.samples.every=1")
    assert_equal({"state_dict": weights}, saved(tmp_path / "run"))


def test_averaging_can_begin_at_a_resume_and_its_end_is_told(run, tmp_path, capsys):
    run("first", "trainer.max_steps=2", "scheduler.max_steps=6")
    last = tmp_path / "first/checkpoints/last.ckpt"
    run("first", *ON, "trainer.max_steps=4", "trainer.precision=bf16-true", resume=last)
    assert CURRENT in saved(tmp_path / "first")
    changed = ("trainer.max_steps=5", "scheduler.max_steps=6", "callbacks.samples=null")
    run("first", *changed, resume=last)
    assert CURRENT not in saved(tmp_path / "first")
    error = capsys.readouterr().err
    assert "callbacks.weight_averaging=null (was AverageWeights)" in error
    assert "callbacks.samples=null (was LogSamples)" in error
    assert "callbacks.samples.every" not in error
