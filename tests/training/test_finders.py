"""The learning-rate range test and the largest batch size."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from musicgen.errors import UserError
from musicgen.memory import total_memory
from musicgen.training import finders
from musicgen.training.finders import steepest


def test_the_best_rate_is_where_the_loss_falls_fastest():
    rates = np.logspace(-6, 0, 100)
    losses = 5 - 1 / (1 + np.exp(-4 * (np.log10(rates) + 2)))  # steepest at 0.01
    losses[np.log10(rates) > -0.5] = np.nan
    assert steepest(rates, losses) == pytest.approx(1e-2, rel=0.15)
    with pytest.raises(UserError, match="too few steps"):
        steepest(rates[:11], losses[:11])


def test_a_learning_rate_is_named_and_nothing_trained(run, tmp_path, capsys):
    run("run", "find=learning_rate")
    found = re.search(r"falls fastest at optimizer.lr=(\S+);", capsys.readouterr().err)
    assert found
    assert 1e-5 < float(found[1]) < 1
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["learning_rates.png"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory")
def test_the_largest_batch_size_is_named(run, monkeypatch, capsys):
    monkeypatch.setattr(finders, "_NUM_SIZES", 3)
    run("run", "find=batch_size")
    assert "tried up to loader.batch_size=8, of 32 tokens each" in capsys.readouterr().err
    # With little memory left, a larger one does not fit.
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    used = int(status["VmData"].split()[0]) * 1024
    monkeypatch.setattr(finders, "_NUM_SIZES", 12)
    monkeypatch.setattr(finders, "_SHARE", (used + 2**28) / total_memory())
    before = resource.getrlimit(resource.RLIMIT_DATA)
    run("run", "find=batch_size", "loader.length=256")
    found = re.search(r"the largest that fits is loader.batch_size=(\d+),", capsys.readouterr().err)
    assert found
    assert 2 <= int(found[1]) <= 2048
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    torch.zeros(2**28)  # 1 GB is to be had again
