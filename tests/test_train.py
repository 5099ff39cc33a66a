"""Training from Python."""

import subprocess
import sys
from pathlib import Path

import pytest

import musicgen
from tests.end_to_end.command_line import SHORT, TINY


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["resume=auto"], "latest"),
        (["seed=2", "hydra.run.dir=elsewhere/a"], "elsewhere/a"),
        (["hydra.run.dir='my runs/a'"], "my runs/a"),
        (["resume=outputs/first", "optimizer.lr=1e-3"], "outputs/first"),
    ],
)
def test_the_model_is_that_of_the_run(monkeypatch, settings, expected):
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: None)
    monkeypatch.setattr(musicgen, "load", lambda folder: folder)
    assert musicgen.train(*settings) == expected


def test_the_model_is_that_of_the_new_run(monkeypatch, tmp_path):
    """Whatever else runs, and also if the run does not count as `latest`, such as a debug run."""

    def run(arguments, **_):
        (folder,) = [x.partition("=")[2] for x in arguments if x.startswith("hydra.run.dir=")]
        Path(folder.replace("${run_name}", "debug")).mkdir(parents=True)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(musicgen, "load", lambda folder: folder)
    first, second = musicgen.train("seed=2"), musicgen.train("seed=2")
    assert first != second
    assert first.parent == Path("outputs/debug")


def test_the_command_trains_a_model_that_is_loaded(monkeypatch, tmp_path):
    run = subprocess.run

    def in_this_process(arguments, *, check):
        assert check, "else nobody learns that training failed"
        python, option, code, *settings = arguments
        assert (python, option) == (sys.executable, "-c")
        monkeypatch.setattr(sys, "argv", ["-c", *settings])
        monkeypatch.setattr(subprocess, "run", run)  # of git, for the run's record
        exec(code, {})

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", in_this_process)
    assert musicgen.train(*TINY, *SHORT).model.dim == 16
