"""Training that ends in time."""

from itertools import count
from types import SimpleNamespace

import pytest
from pytorch_lightning.strategies import SingleDeviceStrategy
from rich.progress import Progress

from musicgen.errors import UserError
from musicgen.training import clock
from tests.training.conftest import assert_equal, runner, saved, stop

STEADY = ("scheduler=warmup_cooldown", "scheduler.warmup_steps=2")
CLOCK = (*STEADY, "callbacks.clock.every=3", "trainer.max_steps=5", f"minutes={11 / 60}")


def tick(monkeypatch, times):
    monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=lambda: float(next(times))))


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    """The last checkpoint of a run with a second a step, and the totals that its bar showed."""
    folder, shown, updated = tmp_path_factory.mktemp("clock"), [], Progress.update

    def update(self, *args, **given):
        shown.extend([given["total"]] if "total" in given else [])
        updated(self, *args, **given)

    with pytest.MonkeyPatch.context() as monkeypatch:
        tick(monkeypatch, count())
        monkeypatch.setattr(Progress, "update", update)
        runner(config, folder)("whole", *CLOCK)
    return saved(folder / "whole"), shown


def test_the_clock_decides_the_steps_and_these_decide_the_weights(run, tmp_path, whole):
    checkpoint, shown = whole
    # Of 12 steps, the rate stays for 7, which are more than 60% of the seconds; of 9, for 5.
    assert checkpoint["global_step"] == shown[-1] == 9
    run("again", *STEADY, "trainer.max_steps=9")
    assert_equal(saved(tmp_path / "again"), checkpoint)


@pytest.mark.parametrize("step", [3, 6])  # before and after the clock decides
def test_a_resumed_run_has_the_seconds_that_were_left(run, tmp_path, monkeypatch, whole, step):
    tick(monkeypatch, count())
    with pytest.raises(KeyboardInterrupt):
        run("run", *CLOCK, stop(step, "interrupt"))
    tick(monkeypatch, count(100))
    run("run", *CLOCK, resume=tmp_path / "run/checkpoints/last.ckpt")
    assert saved(tmp_path / "run")["global_step"] == 9
    assert_equal(saved(tmp_path / "run"), whole[0])


def test_a_run_whose_time_is_over_goes_on_by_steps(run, tmp_path, monkeypatch):
    tick(monkeypatch, count())
    run("run", *CLOCK)
    resume = tmp_path / "run/checkpoints/last.ckpt"
    with pytest.raises(UserError, match=r"minutes=0.5: the run's 9 steps are decided"):
        run("run", *CLOCK, "minutes=0.5", resume=resume)
    run("run", *CLOCK, "minutes=null", "trainer.max_steps=12", resume=resume)
    assert saved(tmp_path / "run")["global_step"] == 12


def test_the_clock_of_the_first_process_counts_for_all(run, tmp_path, monkeypatch, whole):
    def broadcast(self, value, src=0):
        return next(first) if isinstance(value, float) else value

    first = count(1.0)
    monkeypatch.setattr(SingleDeviceStrategy, "broadcast", broadcast)
    tick(monkeypatch, count(step=2))  # of a process whose steps take twice as long
    run("run", *CLOCK)
    assert_equal(saved(tmp_path / "run"), whole[0])


def test_a_machine_that_becomes_slower_stops_in_time(run, tmp_path, monkeypatch):
    tick(monkeypatch, iter([*range(8), 40]))
    rows = run("clock", *CLOCK)
    assert saved(tmp_path / "clock")["global_step"] == 8
    assert rows[7]["val/loss"]
    run("again", *STEADY, "trainer.max_steps=8", "scheduler.max_steps=9")
    assert_equal(saved(tmp_path / "again"), saved(tmp_path / "clock"))
