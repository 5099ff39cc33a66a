"""Training from Python."""

import subprocess
from pathlib import Path

import pytest

import musicgen


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
