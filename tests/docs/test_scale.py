"""The script of docs/scale.md with two processes: its commands, in processes that are forked."""

import os
import shlex
import subprocess

import pytest

from musicgen import load
from tests.end_to_end.command_line import ROOT, call_here, succeed
from tests.end_to_end.deaths import train

PREPARE = "tests/end_to_end/prepare_script.py"
RECORD = """
musicgen-prepare() { echo musicgen-prepare "$@" >> commands; }
torchrun() { echo torchrun "$@" >> commands; }
. "$0"
"""


@pytest.mark.slow
def test_shards_are_joined_and_two_processes_train(tmp_path, monkeypatch, capsys):
    script = ["bash", "-c", RECORD, ROOT / "docs/scale.sh", "data.num_pieces=12"]
    environment = {**os.environ, "PROCESSES": "2"}
    subprocess.run(script, cwd=tmp_path, env=environment, check=True)
    lines = (tmp_path / "commands").read_text().splitlines()
    *preparations, training = map(shlex.split, lines)
    told = []
    for command, *arguments in preparations:
        assert command == "musicgen-prepare"
        told.append(succeed(call_here(tmp_path, PREPARE, arguments, monkeypatch, capsys)).stderr)
    assert ["6 pieces read in" in each for each in told] == [True, True, False], (
        "each shard encodes its half"
    )
    # Tests of processes run torchrun. Here the first process of the run starts the other one.
    torchrun, *arguments = training
    assert [torchrun, *arguments[:3]] == [
        *("torchrun", "--standalone", "--nproc_per_node=2", "train.py")
    ]
    assert train(tmp_path, *arguments[3:]) == 0, (tmp_path / "stderr").read_text()
    told.append((tmp_path / "stderr").read_text())
    assert "".join(told).count("12 pieces (") == 1, "one process builds the index"
    (checkpoint,) = tmp_path.glob("outputs/**/last.ckpt")
    assert load(checkpoint).content.steps == 20
