"""The benchmark of a GPU, whole, on a CPU with small sizes."""

import csv
import json
import logging
import sys
from subprocess import TimeoutExpired
from types import SimpleNamespace

import pytest
import torch

from benchmarks import gpu, measure
from musicgen.batches import Batch

SMALL = (
    *("--device=cpu", "--backend=eager", "--layers=1", "--rounds=1", "--repeats=1", "--length=64"),
    *("--product-tokens=128", "--steps=2", "--max-pieces=2"),
    *("--batches", "2", "1", "--lengths", "64", "--backends", "auto"),
)
SETTINGS = (
    *("model.dim=16", "model.num_layers=1", "model.num_heads=2", "model.ff_dim=16"),
    *("data.num_pieces=6", "loader.length=64", "loader.batch_size=2"),
    *("trainer.val_check_interval=1", "trainer.log_every_n_steps=1"),
)


def in_this_process(command, *, check, timeout):
    """Run a command of Python in this process, which is faster."""
    before, sys.argv = sys.argv, ["-c", *command[3:]]
    try:
        exec(command[2], {})
    finally:
        sys.argv = before


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the script with small sizes in a folder; return all runs that are recorded."""
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    monkeypatch.chdir(tmp_path)
    here = SimpleNamespace(run=in_this_process, TimeoutExpired=TimeoutExpired)
    monkeypatch.setattr(gpu, "subprocess", here)
    monkeypatch.setattr(logging, "raiseExceptions", False)  # handlers of earlier commands
    # One model of each part; all others are built below.
    monkeypatch.setattr(gpu, "ENCODINGS", ("absolute",))
    monkeypatch.setattr(gpu, "PUBLISHED", ("sine_spe",))

    def run(*arguments: str):
        monkeypatch.setattr(sys, "argv", ["gpu", *SMALL, *arguments, "--settings", *SETTINGS])
        gpu.main()
        return json.loads((tmp_path / "gpu-cpu.json").read_text())["runs"]

    return run


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_part_runs_and_training_goes_on(run, tmp_path):
    rows = run()[0]["rows"]
    parts = {part: [row for row in rows if row["part"] == part] for part in gpu.PARTS}
    assert [row["part"] for row in rows] == sorted(
        (row["part"] for row in rows), key=[*gpu.PARTS].index
    )
    assert [row["batch"] for row in parts["songs"]] == [2, 1]
    assert len(parts["training"]) == 2 * len(gpu.ENCODINGS) + 1
    for row in (*parts["training"], *parts["songs"]):
        assert row["tokens_per_second"] > 0
    assert [row["form"] for row in parts["product"] if "error" not in row] == [
        *("ours, compiled", "ours", "softmax")
    ]
    assert [row["encoding"] for row in parts["published"]] == [*gpu.PUBLISHED]
    for row in parts["published"]:
        assert row["losses"]["trained"] > 0
    first, second = run("--parts", "published", "--steps", "4")
    assert len(first["rows"]) == len(rows), "earlier runs of the script stay"
    assert {row["steps"] for row in second["rows"]} == {4}
    for name in gpu.PUBLISHED:
        with (tmp_path / f"outputs/gpu/{name}/metrics.csv").open() as file:
            steps = {int(row["step"]) for row in csv.DictReader(file)}
        assert steps >= {0, 3}, "the same run went on"


@pytest.mark.parametrize("side", gpu.ENCODINGS)
def test_every_encoding_trains(side):
    tokens = torch.randint(333, (1, 8))
    gpu.training_step(gpu.build(side, 1, "cpu").train(), Batch(tokens, tokens))()


@pytest.mark.parametrize("name", gpu.PUBLISHED)
def test_every_published_model_is_an_experiment(name):
    assert (gpu.CONF / f"experiment/spe2021/pop_piano_{name}.yaml").is_file()


def test_an_exhausted_budget_ends_the_script(run):
    with pytest.raises(SystemExit, match="the time budget of 0 s is spent"):
        run("--parts", "training", "--seconds", "0")
