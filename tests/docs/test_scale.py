"""The script of docs/scale.md with two processes: its commands, as a shell runs them."""

import os
import subprocess
import sys

import pytest

from musicgen import load
from tests.end_to_end.command_line import ROOT

PREPARE = ROOT / "tests/end_to_end/prepare_script.py"
COMMANDS = f"""
musicgen-prepare() {{ {sys.executable} {PREPARE} "$@"; }}
torchrun() {{ {sys.executable} -m torch.distributed.run "${{@/train.py/{ROOT}/train.py}}"; }}
. "$0"
"""


@pytest.mark.slow
def test_shards_are_joined_and_two_processes_train(tmp_path):
    script = ["bash", "-c", COMMANDS, ROOT / "docs/scale.sh", "data.num_pieces=12"]
    environment = {**os.environ, "PROCESSES": "2", "COLUMNS": "100"}
    done = subprocess.run(script, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("6 pieces read in") == 2, "each shard encodes its half"
    assert done.stderr.count("12 pieces (") == 1, "one process builds the index"
    (checkpoint,) = tmp_path.glob("outputs/**/last.ckpt")
    assert load(checkpoint).content.steps == 20
