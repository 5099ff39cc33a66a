"""Short runs of the configurations in conf/."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate

from musicgen import load
from musicgen.attention import FAVOR
from musicgen.errors import UserError
from musicgen.training import tasks
from musicgen.training.callbacks import RedrawFeatures
from musicgen.training.checkpointing import SaveLast
from musicgen.training.monitoring.cost import LogCost
from musicgen.training.schedules import inverse_sqrt, warmup_cosine, warmup_polynomial
from tests.training.conftest import assert_equal, saved


def test_runs_are_reproducible_and_resumed_runs_match_uninterrupted_ones(run, tmp_path):
    settings = ("callbacks.redraw_features.probability=0.5", "scheduler.max_steps=6")
    last = tmp_path / "first/checkpoints/last.ckpt"
    full = run("full", "trainer.max_steps=6", *settings)
    again = run("again", "trainer.max_steps=6", *settings)
    first = run("first", "trainer.max_steps=3", *settings)
    second = run("second", "trainer.max_steps=6", *settings, resume=last)
    losses = [full[step]["train/loss"] for step in range(6)]
    assert len(set(losses)) == 6
    assert [again[step]["train/loss"] for step in range(6)] == losses
    assert [first[step]["train/loss"] for step in range(3)] == losses[:3]
    # Batches, noise, redraws, schedule and optimizer continue.
    assert [second[step]["train/loss"] for step in range(3, 6)] == losses[3:]
    assert second[5]["val/loss"] == full[5]["val/loss"]
    for row in full.values():  # both groups of Muon follow the schedule
        matrices, others = (float(row[f"lr-MuonAdamW/{x}"]) for x in ("matrices", "others"))
        assert matrices == pytest.approx(10 * others)
    assert_equal(saved(tmp_path / "second"), saved(tmp_path / "full"))


def test_loss_decreases_and_best_and_last_checkpoints_are_saved(run, tmp_path):
    rows = run(
        "run", "trainer.max_steps=60", "optimizer.adamw_lr=1e-2", "trainer.val_check_interval=20"
    )
    assert float(rows[59]["train/loss"]) < float(rows[0]["train/loss"]) - 1
    assert float(rows[59]["val/loss"]) < float(rows[19]["val/loss"])
    assert (tmp_path / "run/checkpoints/best.ckpt").is_file()
    assert "tokens_per_second" in " ".join(rows[30])


@pytest.mark.parametrize(
    "end", [["trainer.max_steps=2"], ["trainer.max_steps=-1", "trainer.max_epochs=1"]]
)
def test_runs_shorter_than_the_validation_interval_are_validated_at_the_end(run, tmp_path, end):
    rows = run("run", *end, "scheduler.max_steps=9", "trainer.val_check_interval=50")
    assert [float(row["val/loss"]) > 0 for row in rows.values() if "val/loss" in row] == [True]
    assert [saved(tmp_path / "run", name)["global_step"] for name in ("best", "last")] == [2, 2]
    # Runs with a validation are not validated again.
    rows = run("more", "trainer.max_steps=4")
    assert [step for step, row in rows.items() if "val/loss" in row] == [2]


def test_window_follows_the_learned_span(run, tmp_path):
    rows = run(
        "span",
        *("position=siren", "attention=softmax", "span=gaussian", "model.span.sigma=0.1"),
        *("optimizer.adamw_lr=0.05", "scheduler.warmup_steps=1", "trainer.max_steps=6"),
    )
    key = "span/layer0_dim0"
    windows = [int(float(rows[step][key])) for step in range(6)]
    sigma = saved(tmp_path / "span")["state_dict"]["model.layers.0.span.sigma"]
    reach = abs(float(sigma)) * math.sqrt(-2 * math.log(0.1)) * 31
    assert windows[-1] == math.ceil(reach)
    assert windows[-1] != windows[0]
    # Loading the checkpoint restores the window.
    loaded = load(tmp_path / "span/checkpoints/last.ckpt").model
    assert loaded.layers[0].span.window == (windows[-1],)


@pytest.mark.parametrize(
    ("overrides", "step"),
    [
        (["trainer.max_steps=-1", "trainer.max_epochs=3", "scheduler.max_steps=9"], 6),
        (["trainer.max_steps=5", "trainer.accumulate_grad_batches=2"], 5),
    ],
)
def test_last_checkpoint_is_saved_at_the_end(run, tmp_path, overrides, step):
    run("run", *overrides)
    assert saved(tmp_path / "run")["global_step"] == step


def test_saves_are_between_steps_when_gradients_are_accumulated(tmp_path):
    saves = []
    save = SaveLast(str(tmp_path / "last.ckpt"), every=2)
    trainer = SimpleNamespace(global_step=0, max_steps=5, world_size=1)
    trainer.accumulate_grad_batches, trainer.enable_validation = 3, False
    trainer.save_checkpoint = lambda path, weights_only: saves.append(trainer.global_step)
    save.on_train_start(trainer, None)
    for batch in range(15):
        trainer.global_step = (batch + 1) // 3
        save.on_train_batch_end(trainer, None, None, None, batch)
    save.teardown(trainer, None, "fit")
    assert saves == [1, 2, 4, 5]  # the first, as a validation within the second may save the best


def test_overfit_trains_and_validates_on_one_batch(run, monkeypatch):
    seen = []

    compute = tasks._logits

    def logits(model, batch, noise):
        seen.append((model.training, batch.tokens.tolist()))
        return compute(model, batch, noise)

    monkeypatch.setattr(tasks, "_logits", logits)
    short = ("trainer.max_steps=5", "trainer.val_check_interval=2")
    rows = run("run", "debug=overfit", *short)
    assert [training for training, _ in seen] == [True, True, False, True, True, False, True]
    assert all(tokens == seen[0][1] for _, tokens in seen)
    # Before the update of step 2, the loss in training differs by noise and dropout alone.
    assert float(rows[1]["val/loss"]) == pytest.approx(float(rows[2]["train/loss"]), rel=0.05)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("scheduler.max_steps=-1", "scheduler.max_steps=-1: expected an integer >= 1"),
        ("loader.batch_size=0", r"batch_size(', |=)0(, '|: )expected an integer >= 1"),
        ("loader.length=x", r"length(', '|=)x('|:).*expected an integer"),
        ("optimizer.lr=-1", "optimizer.lr=-1: expected a number > 0"),
    ],
)
def test_invalid_settings_are_refused(run, override, message):
    with pytest.raises((UserError, InstantiationException), match=message):
        run("run", "attention=favor", "trainer.max_steps=1", override)


def test_redraw_frequency():
    favor = FAVOR(4, 0.5)
    module = torch.nn.ModuleList([favor])

    def draws(callback: RedrawFeatures, steps: int) -> list[int]:
        at = []
        for step in range(steps):
            before = favor.omega.clone()
            trainer = type("Trainer", (), {"global_step": step, "accumulate_grad_batches": 1})
            callback.on_train_batch_start(trainer, module, None, step)
            if not torch.equal(favor.omega, before):
                at.append(step)
        return at

    assert draws(RedrawFeatures(every=4), 13) == [4, 8, 12]
    often = draws(RedrawFeatures(probability=0.25, seed=3), 400)
    assert 70 < len(often) < 130
    assert draws(RedrawFeatures(probability=0.25, seed=3), 400) == often


def test_throughput_is_logged_once_per_step():
    callback, logged = LogCost(every=2), []
    module = SimpleNamespace(log=lambda name, value, **_: logged.append((name, value)))
    batch = SimpleNamespace(tokens=torch.zeros(2, 8))
    for micro_batch in range(16):  # four per step
        trainer = SimpleNamespace(global_step=(micro_batch + 1) // 4, world_size=3)
        callback.on_train_batch_start(trainer, module, batch, micro_batch)
        callback.on_train_batch_end(trainer, module, None, batch, micro_batch)
    assert len(logged) == 6  # two rates and the number, after steps 2 and 4
    assert [value for name, value in logged if name == "train/tokens"] == [384, 768]
    resumed = LogCost(every=1)
    resumed.load_state_dict(callback.state_dict())
    resumed.on_train_batch_start()
    resumed.on_train_batch_end(trainer, module, None, batch, 0)
    assert resumed.state_dict()["tokens"] == 768 + 48


def test_hours_and_memory_of_training_are_logged_with_each_validation(run, tmp_path):
    arguments = ("scheduler.max_steps=4", "trainer.val_check_interval=2")
    rows = run("first", "trainer.max_steps=2", *arguments)
    first = float(rows[1]["train/hours"])
    assert 0 < first < 0.1
    assert 0 < float(rows[1]["train/cpu_hours"]) < 0.1
    assert 0.1 < float(rows[1]["train/gigabytes"]) < 100
    last, checkpoint = tmp_path / "first/checkpoints/last.ckpt", saved(tmp_path / "first")
    spent = checkpoint["callbacks"]["LogCost"]  # as if it had run for an hour more
    spent["seconds"] += 3600
    spent["cpu_seconds"] += 7200
    torch.save(checkpoint, last)
    rows = run("second", "trainer.max_steps=4", *arguments, resume=last)
    assert 1 + first < float(rows[3]["train/hours"]) < 1.1 + first
    assert 2 < float(rows[3]["train/cpu_hours"]) < 2.1


def rates(build, steps, **settings):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0)
    scheduler = build(optimizer, **settings)
    found = []
    for _ in range(steps):
        found.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return found


def test_schedules_by_hand(config):
    found = rates(warmup_cosine, 20, warmup_steps=4, max_steps=14, min_lr=1.0)
    assert found[:5] == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.0])
    assert found[9] == pytest.approx(1.5)  # half-way down from 2 to 1
    assert found[14:] == pytest.approx([1.0] * 6)
    settings = {"warmup_steps": 2, "max_steps": 6, "min_lr": 1.0}
    found = rates(warmup_polynomial, 8, power=1.0, **settings)
    assert found == pytest.approx([1.0, 2.0, 2.0, 1.75, 1.5, 1.25, 1.0, 1.0])
    found = rates(warmup_polynomial, 5, power=2.0, **settings)
    assert found[4] == pytest.approx(1.25)
    for warmup_steps in (0, 1):  # none begins at the full rate, too
        found = rates(inverse_sqrt, 4, warmup_steps=warmup_steps)
        assert found == pytest.approx([2 / (step + 1) ** 0.5 for step in range(4)])
    constant = instantiate(config("train", "scheduler=constant").scheduler)
    assert rates(constant, 9) == [2.0] * 9


@pytest.mark.parametrize("position", ["none", "conv_spe"])
def test_grooves_train(run, position):
    rows = run("run", "task=groove", f"position={position}", "trainer.max_steps=3")
    assert float(rows[2]["val/loss"]) > 0


def test_runs_without_validation_pieces(run, tmp_path, capsys):
    rows = run("run", "loader.val_fraction=0", "trainer.max_steps=3")
    shown = capsys.readouterr().err
    assert "(5 train, 0 val, 1 test)" in shown
    assert "no val pieces among 6: all pieces are used" in shown
    assert float(rows[2]["val/loss"]) > 0


def test_bf16_accumulation_and_recomputation_go_together(run, tmp_path):
    plain = run("plain", "trainer.max_steps=3", "trainer.accumulate_grad_batches=2")
    options = ("trainer.precision=bf16-mixed", "recompute=true")
    rows = run("bf16", "trainer.max_steps=3", "trainer.accumulate_grad_batches=2", *options)
    for step in range(3):
        loss = float(plain[step]["train/loss"])
        assert float(rows[step]["train/loss"]) == pytest.approx(loss, rel=0.01)
    weights = saved(tmp_path / "bf16")["state_dict"].values()
    assert all(t.dtype == torch.float32 for t in weights if t.is_floating_point())
