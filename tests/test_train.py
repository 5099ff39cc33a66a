"""Training from Python."""

import subprocess

import pytest

import musicgen


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["seed=2"], "latest"),
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
