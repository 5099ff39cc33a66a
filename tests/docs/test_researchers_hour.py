"""The script of docs/research.md, at a small size, as a reader runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from musicgen import load
from musicgen.cli.arguments import resumed_arguments
from musicgen.files import read_csv
from tests.end_to_end.command_line import ROOT, TINY


@pytest.mark.slow
def test_the_hour_ends_with_a_table_and_a_plot(tmp_path):
    for name in ("train.py", "evaluate.py"):
        (tmp_path / name).symlink_to(ROOT / name)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "STEPS": "4"}
    command = ["bash", ROOT / "docs/researchers_hour.sh", *TINY, "trainer.val_check_interval=2"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    runs = {row["run"] for row in read_csv(tmp_path / "hour/comparison/evaluation_pieces.csv")}
    assert runs == {"position=rope", "position=sine_spe", "position=alibi"}
    assert len([*(tmp_path / "hour/comparison").glob("position_loss.*")]) == 2  # with its curves
    for number in range(3):
        run = tmp_path / f"hour/{number}"
        assert load(run / "checkpoints/last.ckpt").content.steps == 6
        assert list(run.glob("wandb/offline-run-*/logs/*"))  # with W&B's link to its own log,
        assert resumed_arguments([f"resume={run}"])  # it may go on once more
