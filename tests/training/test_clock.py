"""Training that ends in time."""

from itertools import count
from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
from rich.progress import Progress

from musicgen.training import clock
from musicgen.training.schedules import warmup_cooldown
from tests.training.conftest import assert_equal, saved
from tests.training.test_training import rates

CLOCK = (
    "scheduler=warmup_cooldown",
    "scheduler.warmup_steps=2",
    "callbacks.clock.every=3",
    "trainer.max_steps=5",
)


class Stop(pl.Callback):
    """Interrupt a run before the step that follows a number of steps."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: pl.Trainer, *args: object) -> None:
        if trainer.global_step == self.step:
            raise KeyboardInterrupt


def tick(monkeypatch, times):
    monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=lambda: float(next(times))))


def test_the_rate_warms_up_stays_and_falls_to_zero():
    found = rates(warmup_cooldown, 10, warmup_steps=2, max_steps=10, cooldown=0.4)
    assert found == pytest.approx([1, 2, 2, 2, 2, 2, 2, 1.5, 1, 0.5])
    assert rates(warmup_cooldown, 2, warmup_steps=0, max_steps=1, cooldown=0.4) == [2, 0]


def test_the_clock_decides_the_steps_and_these_decide_the_weights(run, tmp_path, monkeypatch):
    tick(monkeypatch, count())  # a second a step
    shown = []
    updated = Progress.update

    def update(self, *args, **given):
        shown.extend([given["total"]] if "total" in given else [])
        updated(self, *args, **given)

    monkeypatch.setattr(Progress, "update", update)
    run("clock", *CLOCK, f"minutes={11 / 60}")
    # Of 12 steps, the rate stays for 7, which are more than 60% of the seconds; of 9, for 5.
    assert saved(tmp_path / "clock")["global_step"] == shown[-1] == 9
    run("again", *CLOCK[:2], "trainer.max_steps=9")
    assert_equal(saved(tmp_path / "again"), saved(tmp_path / "clock"))


@pytest.mark.parametrize("step", [3, 6])  # before and after the clock decides
def test_a_resumed_run_has_the_seconds_that_were_left(run, tmp_path, monkeypatch, step):
    tick(monkeypatch, count())
    run("whole", *CLOCK, f"minutes={11 / 60}")
    stop = f"+callbacks.stop={{_target_:{__name__}.Stop,step:{step}}}"
    tick(monkeypatch, count())
    with pytest.raises(KeyboardInterrupt):
        run("run", *CLOCK, f"minutes={11 / 60}", stop)
    tick(monkeypatch, count(100))
    last = tmp_path / "run/checkpoints/last.ckpt"
    run("run", *CLOCK, f"minutes={11 / 60}", resume=last)
    assert saved(tmp_path / "run")["global_step"] == 9
    assert_equal(saved(tmp_path / "run"), saved(tmp_path / "whole"))


def test_a_machine_that_becomes_slower_stops_in_time(run, tmp_path, monkeypatch):
    tick(monkeypatch, iter([*range(8), 40]))
    rows = run("clock", *CLOCK, f"minutes={11 / 60}")
    assert saved(tmp_path / "clock")["global_step"] == 8
    assert rows[7]["val/loss"]
    run("again", *CLOCK[:2], "trainer.max_steps=8", "scheduler.max_steps=9")
    assert_equal(saved(tmp_path / "again"), saved(tmp_path / "clock"))
