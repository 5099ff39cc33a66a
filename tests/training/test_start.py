"""Runs from the weights of another: they are validated before the first step."""

import pytest
import torch

from tests.training.conftest import saved, stop

SHORT = ("trainer.max_steps=6", "scheduler.max_steps=6", "model.dropout=0")
RUIN = ("optimizer=adamw", "optimizer.lr=9", "scheduler.warmup_steps=0")


@pytest.fixture
def begun(run, tmp_path):
    """A run of three steps, whose weights others begin with."""
    run("first", *SHORT, "trainer.max_steps=3", "scheduler.max_steps=3")
    return f"init={tmp_path / 'first/checkpoints/last.ckpt'}"


def weights_equal(found, expected) -> bool:
    pairs = zip(found["state_dict"].values(), expected["state_dict"].values(), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("more", [(), ("callbacks=averaged",)])
def test_weights_that_training_makes_worse_stay_the_best(run, begun, tmp_path, capsys, more):
    ruin = (*RUIN, *more)
    rows = run("worse", *SHORT, begun, *ruin)
    losses = {step: float(row["val/loss"]) for step, row in rows.items() if "val/loss" in row}
    assert list(losses) == [0, 2, 5]
    assert losses[0] < min(losses[2], losses[5])
    best = saved(tmp_path / "worse", "best")
    assert best["global_step"] == 0
    assert weights_equal(best, saved(tmp_path / "first"))
    assert saved(tmp_path / "worse")["global_step"] == 6
    notice = "training has not improved val/loss: best.ckpt has the weights of init=; a lower opt"
    shown = capsys.readouterr().err
    assert notice in shown
    assert f"step 0: validation loss {losses[0]:.4f}" in shown


def test_better_weights_replace_those_of_the_start(run, begun, tmp_path, capsys):
    rows = run("better", *SHORT, begun)
    assert float(rows[5]["val/loss"]) < float(rows[0]["val/loss"])
    assert saved(tmp_path / "better", "best")["global_step"] == 6
    assert "has not improved" not in capsys.readouterr().err
    # Random weights are not worth a validation.
    assert "val/loss" not in run("random", *SHORT)[0]


def test_early_stopping_counts_from_the_start(run, begun, tmp_path):
    rows = run(
        "worse",
        *SHORT,
        begun,
        *RUIN,
        "callbacks=early_stopping",
        "callbacks.early_stopping.patience=1",
    )
    assert [step for step, row in rows.items() if "val/loss" in row] == [0, 2]


def test_a_run_that_was_stopped_at_its_start_resumes(run, begun, tmp_path):
    whole = run("whole", *SHORT, begun)
    with pytest.raises(MemoryError):
        run("part", *SHORT, begun, stop(0, "validation"))
    assert saved(tmp_path / "part")["global_step"] == 0
    assert (tmp_path / "part/config.yaml").is_file()
    last = tmp_path / "part/checkpoints/last.ckpt"
    rows = run("part", *SHORT, begun, resume=last)
    assert weights_equal(saved(tmp_path / "part"), saved(tmp_path / "whole"))
    for name in ("val/loss", "train/loss"):
        found, expected = ({step: row.get(name) for step, row in x.items()} for x in (rows, whole))
        assert found == expected
    assert saved(tmp_path / "part", "best")["global_step"] == 6


@pytest.mark.parametrize("how", ["signal", "interrupt"])
def test_an_interrupted_run_has_no_traceback_in_its_log(run, tmp_path, how):
    with pytest.raises(KeyboardInterrupt):
        run("stopped", *SHORT, stop(4, how))
    lines = (tmp_path / "stopped/train.log").read_text().splitlines()
    assert lines[-1].endswith(" interrupted")
    assert " to continue: " in lines[-2]
    assert not any("Traceback" in line for line in lines)
