"""The script of docs/research.md, at a small size: its commands, each in this process."""

import os
import shlex
import subprocess

import pytest

from musicgen import load
from musicgen.cli.arguments import resumed_arguments
from musicgen.files import read_csv
from tests.end_to_end.command_line import ROOT, TINY, call_here, succeed


@pytest.mark.slow
def test_the_hour_ends_with_a_table_and_a_plot(tmp_path, monkeypatch, capsys):
    import wandb  # which takes a second

    record = 'python() { echo "$@" >> commands; }; . "$0"'
    script = [ROOT / "docs/researchers_hour.sh", *TINY, "trainer.val_check_interval=2"]
    environment = {**os.environ, "STEPS": "4"}
    subprocess.run(["bash", "-c", record, *script], cwd=tmp_path, env=environment, check=True)
    monkeypatch.setenv("WANDB_MODE", "offline")
    for line in (tmp_path / "commands").read_text().splitlines():
        script, *arguments = shlex.split(line)
        succeed(call_here(tmp_path, script, arguments, monkeypatch, capsys))
        wandb.finish()
    runs = {row["run"] for row in read_csv(tmp_path / "hour/comparison/evaluation_pieces.csv")}
    assert runs == {"position=rope", "position=sine_spe", "position=alibi"}
    assert len([*(tmp_path / "hour/comparison").glob("position_loss.*")]) == 2  # with its curves
    for number in range(3):
        run = tmp_path / f"hour/{number}"
        assert load(run / "checkpoints/last.ckpt").content.steps == 6
        assert list(run.glob("wandb/offline-run-*/logs/*"))  # with W&B's link to its own log,
        assert resumed_arguments([f"resume={run}"])  # it may go on once more
