"""Run the commands in a folder."""

import logging
import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hydra._internal.hydra import Hydra

ROOT = Path(__file__).parents[2]


TINY = (
    "model.dim=16",
    "model.num_layers=2",
    "model.num_heads=2",
    "model.ff_dim=16",
    "data.num_pieces=6",
    "loader.length=64",
    "loader.batch_size=2",
)
# As debug=limit, whose runs do not count for checkpoint=latest and resume=auto.
SHORT = ("trainer.max_steps=4", "trainer.val_check_interval=2", "trainer.log_every_n_steps=1")


def with_run(script: str, arguments: Sequence[str]) -> list[str]:
    """The arguments; generate.py takes the folder's run, not the model of the package."""
    given = any(argument.startswith("checkpoint=") for argument in arguments)
    latest = ["checkpoint=latest"] if script == "generate.py" and not given else []
    return [*arguments, *latest]


def call(folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    environment.pop("HYDRA_FULL_ERROR", None)
    return subprocess.run(
        [sys.executable, str(ROOT / script), *with_run(script, arguments)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )


def call_here(
    folder: Path, script: str, arguments: list[str], monkeypatch, capsys
) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, which is faster."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    monkeypatch.setattr(sys, "argv", [str(ROOT / script), *with_run(script, arguments)])
    # Handlers that an earlier call made keep its streams, which are closed.
    monkeypatch.setattr(logging, "raiseExceptions", False)
    capsys.readouterr()
    status: int | str | None = 0
    try:
        with _without_search(arguments):
            runpy.run_path(str(ROOT / script), run_name="__main__")
    except SystemExit as stop:
        status = stop.code
    except Exception:
        traceback.print_exc()
        status = 1
    out, err = capsys.readouterr()
    return subprocess.CompletedProcess(sys.argv, int(status or 0), out, err)


def _without_search(arguments: Sequence[str]) -> AbstractContextManager[Any]:
    """Keep Hydra from composing everything once more to see whether the settings ask for a search."""
    if any(argument.startswith(("hparams_search=", "hydra.mode=")) for argument in arguments):
        return nullcontext()
    return patch.object(Hydra, "get_mode", return_value=None)


def succeed(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    assert done.returncode == 0, done.stderr
    return done


def assert_one_line(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    """Assert that a command ended with status 2 and one line of error."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, done.stderr
    assert "Error executing" not in done.stderr
    for part in parts:
        assert part in lines[0], done.stderr
    assert done.stderr.splitlines()[-1] == lines[0]
