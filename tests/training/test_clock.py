"""Training that ends in time."""

from itertools import count
from types import SimpleNamespace

import pytest

from musicgen.training import clock
from musicgen.training.schedules import warmup_cooldown
from tests.training.conftest import assert_equal, saved
from tests.training.test_training import rates

CLOCK = (
    "scheduler=warmup_cooldown",
    "scheduler.warmup_steps=2",
    "+callbacks.clock._target_=musicgen.training.clock.EndInTime",
    "+callbacks.clock.every=3",
    "trainer.max_steps=5",
)


def tick(monkeypatch, times):
    monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=lambda: float(next(times))))


def test_the_rate_warms_up_stays_and_falls_to_zero():
    found = rates(warmup_cooldown, 10, warmup_steps=2, max_steps=10, cooldown=0.4)
    assert found == pytest.approx([1, 2, 2, 2, 2, 2, 2, 1.5, 1, 0.5])


def test_the_clock_decides_the_steps_and_these_decide_the_weights(run, tmp_path, monkeypatch):
    tick(monkeypatch, count())  # a second a step
    run("clock", *CLOCK, "+callbacks.clock.seconds=11")
    # Of 12 steps, the rate stays for 7, which are more than 60% of the seconds; of 9, for 5.
    assert saved(tmp_path / "clock")["global_step"] == 9
    run("again", *CLOCK[:2], "trainer.max_steps=9")
    assert_equal(saved(tmp_path / "again"), saved(tmp_path / "clock"))


def test_a_machine_that_becomes_slower_stops_in_time(run, tmp_path, monkeypatch):
    tick(monkeypatch, iter([*range(8), 40]))
    rows = run("clock", *CLOCK, "+callbacks.clock.seconds=11")
    assert saved(tmp_path / "clock")["global_step"] == 8
    assert rows[7]["val/loss"]
    run("again", *CLOCK[:2], "trainer.max_steps=8", "scheduler.max_steps=9")
    assert_equal(saved(tmp_path / "again"), saved(tmp_path / "clock"))
