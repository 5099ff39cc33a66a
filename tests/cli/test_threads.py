"""The number of threads: cores that are free, and one for small steps."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from musicgen.cli.runner import threads
from musicgen.cli.runner.threads import (
    WORK_FOR_THREADS,
    busy_cores,
    num_threads,
    set_up_cpu,
    spin_briefly,
)
from musicgen.run_folders import record_start, recorded_threads


def test_the_number_of_threads():
    small, large = WORK_FOR_THREADS - 1, WORK_FOR_THREADS
    assert num_threads(8, 16, 0.0, {}, None) == 8
    assert num_threads(8, 16, 12.2, {}, None) == 4
    assert num_threads(8, 16, 40.0, {}, None) == 1
    assert num_threads(2, 2, 0.9, {}, large) == 1
    assert num_threads(2, 2, 0.3, {}, large) == 2
    assert num_threads(2, 2, 0.3, {}, small) == 1
    assert num_threads(2, 2, 9.0, {"OMP_NUM_THREADS": "2"}, small) == 2


def test_spinning_is_shorter_unless_the_user_chose():
    for given in ({"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "5"}):
        environment = dict(given)
        spin_briefly(environment)
        assert environment == given
    environment = {}
    spin_briefly(environment)
    assert int(environment["GOMP_SPINCOUNT"]) < 300_000


def test_a_resumed_run_keeps_its_threads(tmp_path, monkeypatch):
    used = []
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    assert recorded_threads(tmp_path) is None
    record_start(tmp_path, False, threads=1)
    monkeypatch.setattr(threads, "busy_cores", lambda: 0.0)
    for name in threads._SET_BY_USER:
        monkeypatch.delenv(name, raising=False)
    set_up_cpu(recorded=recorded_threads(tmp_path))
    assert used == [1]


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this CPU keeps denormal numbers")
def test_denormal_numbers_become_zero_in_all_threads():
    code = (
        "import torch; from musicgen.cli.runner.threads import set_up_cpu; set_up_cpu(recorded=2); "
        "assert not (torch.full((1 << 20,), 1e-38) / 8).any()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(not threads._LOADAVG.is_file(), reason="counts running threads on Linux only")
def test_busy_programs_are_counted():
    loops = [subprocess.Popen([sys.executable, "-c", "while 1: 0"]) for _ in range(3)]
    try:
        assert busy_cores() >= 2.5  # others may run beside them
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def test_nothing_is_counted_on_other_systems(tmp_path, monkeypatch):
    monkeypatch.setattr(threads, "_LOADAVG", tmp_path / "missing")
    assert busy_cores() == 0
