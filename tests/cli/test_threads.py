"""The number of threads: cores that are free, and one for small steps."""

from __future__ import annotations

import subprocess
import sys

import pytest

from musicgen.cli.runner import threads
from musicgen.cli.runner.threads import WORK_FOR_THREADS, busy_cores, num_threads


def test_the_number_of_threads():
    small, large = WORK_FOR_THREADS - 1, WORK_FOR_THREADS
    assert num_threads(8, 16, 0.0, {}, None) == 8
    assert num_threads(8, 16, 12.2, {}, None) == 4
    assert num_threads(8, 16, 40.0, {}, None) == 1
    assert num_threads(2, 2, 0.9, {}, large) == 1
    assert num_threads(2, 2, 0.3, {}, large) == 2
    assert num_threads(2, 2, 0.3, {}, small) == 1
    assert num_threads(2, 2, 9.0, {"OMP_NUM_THREADS": "2"}, small) == 2


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
