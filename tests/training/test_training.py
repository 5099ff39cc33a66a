"""Short runs of the configurations in conf/."""

import signal
from types import SimpleNamespace

import pytest
import torch

from musicgen.attention import FAVOR
from musicgen.data import loading
from musicgen.models import Transformer
from musicgen.training.callbacks import RedrawFeatures
from musicgen.training.checkpointing import SaveLast
from tests.training.conftest import saved, stop


@pytest.mark.parametrize(
    "end", [["trainer.max_steps=2"], ["trainer.max_steps=-1", "trainer.max_epochs=1"]]
)
def test_runs_shorter_than_the_validation_interval_are_validated_at_the_end(run, tmp_path, end):
    rows = run("run", *end, "scheduler.max_steps=9", "trainer.val_check_interval=50")
    assert [float(row["val/loss"]) > 0 for row in rows.values() if "val/loss" in row] == [True]
    assert [saved(tmp_path / "run", name)["global_step"] for name in ("best", "last")] == [2, 2]


def test_a_run_ends_with_a_validation_and_its_end_can_be_the_best(run, tmp_path):
    rows = run("run", "trainer.max_steps=5", "scheduler.max_steps=9")  # validates every 3
    losses = {step: float(row["val/loss"]) for step, row in rows.items() if "val/loss" in row}
    assert list(losses) == [2, 4]
    assert losses[4] < losses[2]
    assert saved(tmp_path / "run", "best")["global_step"] == 5
    last = tmp_path / "run/checkpoints/last.ckpt"
    rows = run("run", "trainer.max_steps=8", "scheduler.max_steps=9", resume=last)
    assert [step for step, row in rows.items() if "val/loss" in row] == [2, 4, 5, 7]


def test_a_run_that_failed_in_its_last_validation_is_validated_when_it_resumes(run, tmp_path):
    settings = ("trainer.max_steps=5", "scheduler.max_steps=9")
    with pytest.raises(MemoryError):
        run("run", *settings, stop(5, "validation"))
    assert [saved(tmp_path / "run", x)["global_step"] for x in ("best", "last")] == [3, 5]
    rows = run("run", *settings, resume=tmp_path / "run/checkpoints/last.ckpt")
    assert float(rows[4]["val/loss"]) > 0
    assert saved(tmp_path / "run", "best")["global_step"] == 5


def test_saves_are_between_steps_when_gradients_are_accumulated(monkeypatch):
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    saves = []
    save = SaveLast(every=2)
    trainer = SimpleNamespace(global_step=0, max_steps=5, world_size=1, default_root_dir="")
    trainer.accumulate_grad_batches, trainer.enable_validation = 3, False
    trainer.save_checkpoint = lambda path, weights_only: saves.append(trainer.global_step)
    save.on_train_start(trainer, None)
    for batch in range(15):
        trainer.global_step = (batch + 1) // 3
        save.on_train_batch_end(trainer, None, None, None, batch)
    assert saves == [1, 2, 4, 5]  # the first, as a validation within the second may save the best


def test_each_micro_batch_has_noise_of_its_own(run, monkeypatch):
    keys, compute = [], Transformer.draw

    def draw(model, key, *arguments):
        keys.append(key.words)
        return compute(model, key, *arguments)

    monkeypatch.setattr(Transformer, "draw", draw)
    run("run", "trainer.max_steps=3", "trainer.accumulate_grad_batches=2")
    seed = keys[0][0]  # then step, micro-batch and rank
    assert keys == [(seed, step, number, 0) for step in range(3) for number in range(2)]


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_copy_heads_learn_in_bf16(run, precision):
    settings = ("trainer.max_steps=3", "trainer.accumulate_grad_batches=2", "model.copy={}")
    plain = run("plain", *settings)
    rows = run("bf16", *settings, f"trainer.precision={precision}", "recompute=true")
    for step in range(3):
        loss = float(plain[step]["train/loss"])
        assert float(rows[step]["train/loss"]) == pytest.approx(loss, rel=0.01)


def test_redraw_frequency(monkeypatch):
    favor, keys = FAVOR(4, 0.5), []
    module = torch.nn.ModuleList([favor])
    redraw = favor.redraw
    monkeypatch.setattr(favor, "redraw", lambda key: keys.append(key) or redraw(key))

    def draws(callback: RedrawFeatures, batches: int, accumulated: int = 1) -> list[int]:
        """The batches before which features are redrawn."""
        at = []
        for batch in range(batches):
            before = favor.omega.clone()
            step = batch // accumulated
            state = {"global_step": step, "accumulate_grad_batches": accumulated}
            keys.clear()
            callback.on_train_batch_start(type("Trainer", (), state), module, None, batch)
            assert torch.equal(favor.omega, before) == (not keys)
            at += [batch] * len(keys)
        return at

    assert draws(RedrawFeatures(every=4), 13) == [4, 8, 12]
    # All batches of a step have the same features.
    assert draws(RedrawFeatures(every=2), 24, accumulated=4) == [8, 16]
    often = draws(RedrawFeatures(probability=0.25, seed=3), 400)
    assert 70 < len(often) < 130
    assert draws(RedrawFeatures(probability=0.25, seed=3), 400) == often


def test_grooves_teach_how_many_notes_sound_at_once(run, tmp_path):
    rows = run("run", "task=groove", "trainer.max_steps=3")
    assert float(rows[2]["val/loss"]) > 0
    sampling = saved(tmp_path / "run")["musicgen"]["sampling"]
    assert len(sampling["max_notes"]) == 5
    assert all(1 <= number <= 12 for number in sampling["max_notes"])
    assert max(sampling["max_notes"]) > 2


def test_a_validation_while_training_takes_some_pieces_and_the_end_all(run, monkeypatch, capsys):
    """The loss of all at the end is that of the best weights, as a validation of all says it."""
    sizes, windows = [], loading.EvalWindows.__init__

    def count(self, cache, pieces, length):
        if pieces:
            sizes.append(len(pieces))
        windows(self, cache, pieces, length)

    monkeypatch.setattr(loading.EvalWindows, "__init__", count)
    settings = ("loader.val_fraction=0.5", "data.num_pieces=12", "trainer.max_steps=3")
    whole = run("whole", *settings)
    (num_pieces,) = set(sizes)
    assert num_pieces > 2
    sizes.clear()
    some = run("some", *settings, "loader.val_pieces=2")
    assert sizes == [2, num_pieces]
    (step,) = (step for step, row in whole.items() if "val/loss" in row)
    assert some[step]["val/loss"] != whole[step]["val/loss"]
    (last,) = (row for row in some.values() if "val_all/loss" in row)
    assert float(last["val_all/loss"]) == pytest.approx(float(whole[step]["val/loss"]), abs=1e-6)
    assert "validation loss of all pieces: " in capsys.readouterr().err
