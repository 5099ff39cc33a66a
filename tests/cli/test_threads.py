"""How torch computes on a CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from musicgen.cli import threads
from musicgen.cli.threads import (
    WORK_FOR_THREADS,
    fewer_threads,
    one_thread,
    set_up_cpu,
    spin_briefly,
)


@pytest.mark.parametrize(
    ("decoded", "given", "expected"),
    [
        (WORK_FOR_THREADS - 1, None, [1]),
        (WORK_FOR_THREADS, None, []),
        (None, None, []),
        (WORK_FOR_THREADS - 1, "2", []),
    ],
)
def test_small_decoding_steps_take_one_thread(monkeypatch, decoded, given, expected):
    used: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    set_up_cpu(decoded=decoded)
    assert used == expected


def test_the_number_of_threads_returns_after_one():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("seconds", "expected"), [({4: 1, 2: 2, 1: 3}, None), ({4: 9, 2: 4, 1: 5}, 2)]
)
def test_a_busy_machine_gets_fewer_threads(monkeypatch, seconds, expected):
    for name in ("MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    used, now = [4], [0.0]

    def clock() -> float:
        now[0] += seconds[used[-1]]
        return now[0]

    monkeypatch.setattr(torch, "get_num_threads", lambda: used[-1])
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    monkeypatch.setattr(threads, "time", SimpleNamespace(perf_counter=clock))
    assert fewer_threads() == expected
    assert used[-1] == 4
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert fewer_threads() is None


@pytest.mark.parametrize(
    ("given", "count"),
    [({}, "20000"), ({"OMP_WAIT_POLICY": "active"}, None), ({"GOMP_SPINCOUNT": "5"}, "5")],
)
def test_spinning_is_shorter_unless_the_user_chose(monkeypatch, given, count):
    monkeypatch.setattr(os, "environ", dict(given))
    spin_briefly()
    assert os.environ.get("GOMP_SPINCOUNT") == count


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this CPU keeps denormal numbers")
def test_denormal_numbers_become_zero_in_all_threads():
    code = (
        "import torch; from musicgen.cli.threads import set_up_cpu; set_up_cpu(); "
        "assert not (torch.full((1 << 20,), 1e-38) / 8).any()"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env=os.environ | {"OMP_NUM_THREADS": "2"}
    )
