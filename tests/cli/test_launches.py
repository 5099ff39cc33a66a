"""Processes of one launch agree on their arguments."""

from __future__ import annotations

import re
import threading

import pytest
from torch.distributed import TCPStore

from musicgen.cli.runner.launches import agree_on_arguments

TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_USE_AGENT_STORE": "True", "WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"},  # without srun
        {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1"},
        {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"},  # started by Lightning
    ],
)
def test_a_process_alone_keeps_its_arguments(monkeypatch, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert agree_on_arguments(["seed=1"]) == ["seed=1"]


@pytest.mark.parametrize("given", ["seed=3", "hydra.run.dir=here", "-m"])
def test_all_take_the_first_ones(monkeypatch, given):
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    place = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port)}
    for name, value in (TORCHRUN | place).items():
        monkeypatch.setenv(name, value)
    found = []
    monkeypatch.setenv("RANK", "1")
    other = threading.Thread(target=lambda: found.append(agree_on_arguments(["seed=2"])))
    other.start()
    other.join(1)  # it has read its rank, and waits
    monkeypatch.setenv("RANK", "0")
    first = agree_on_arguments([given])
    other.join(30)
    assert found == [first]
    assert first[0] == given
    if given == "seed=3":
        date = r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d"
        assert re.fullmatch(rf"hydra\.run\.dir=outputs/\$\{{run_name\}}/{date}", first[1])
    else:
        assert len(first) == 1
