"""Sweeps: an interrupted one goes on with what is missing."""

from __future__ import annotations

import importlib.util
import json
import os

import pytest
import torch
import yaml

from tests.end_to_end.command_line import TINY, assert_one_line, call, succeed

STEPS = ("trainer.max_steps=4", "trainer.val_check_interval=2")
OPTUNA = (*TINY, *STEPS, "hparams_search=optuna", "hydra.sweeper.sampler.n_startup_trials=2")


def installed(plugin: str) -> bool:
    packages = importlib.util.find_spec("hydra_plugins")
    return bool(packages and importlib.util.find_spec(f"hydra_plugins.{plugin}"))


needs_optuna = pytest.mark.skipif(
    not installed("hydra_optuna_sweeper"), reason="needs the extra optuna"
)


def weights(folder):
    return torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["state_dict"]


KILL = """
import os
from pytorch_lightning import Callback

class Kill(Callback):
    def on_train_batch_end(self, trainer, *_):
        in_second = os.path.basename(trainer.default_root_dir) == "1"
        if "KILL" in os.environ and in_second and trainer.global_step == 3:
            os._exit(9)
"""


def test_a_killed_sweep_goes_on_where_it_stopped(here, workplace, monkeypatch):
    (workplace / "killing.py").write_text(KILL)
    monkeypatch.syspath_prepend(workplace)
    monkeypatch.setenv("PYTHONPATH", str(workplace), prepend=os.pathsep)
    arguments = ["-m", *TINY, "trainer.max_steps=4", "trainer.val_check_interval=2", "seed=1,2,3"]
    arguments += ["+callbacks.kill={_target_: killing.Kill}"]
    succeed(here(workplace, "train.py", *arguments, "hydra.sweep.dir=whole"))
    with monkeypatch.context() as patch:
        patch.setenv("KILL", "1")
        assert call(workplace, "train.py", *arguments, "hydra.sweep.dir=cut").returncode == 9
    assert (workplace / "cut/1/checkpoints/last.ckpt").is_file()
    assert not (workplace / "cut/2").exists()
    assert not (workplace / "cut/1/finished.json").exists()
    before = (workplace / "cut/0/checkpoints/last.ckpt").stat().st_mtime_ns
    again = succeed(here(workplace, "train.py", *arguments, "hydra.sweep.dir=cut"))
    assert "/cut/0: finished before" in again.stderr
    assert "/cut/1/checkpoints/last.ckpt: " in again.stderr  # continues
    assert (workplace / "cut/0/checkpoints/last.ckpt").stat().st_mtime_ns == before
    for job in "012":
        found = weights(workplace / "cut" / job)
        for name, tensor in weights(workplace / "whole" / job).items():
            assert torch.equal(tensor, found[name]), (job, name)
        scores = {(workplace / f / job / "finished.json").read_text() for f in ("cut", "whole")}
        assert len(scores) == 1


def test_a_sweep_goes_on_after_an_impossible_combination_and_keeps_other_runs(here, workplace):
    arguments = ["-m", *TINY, *STEPS, "hydra.sweep.dir=grid", "logger=none"]
    done = here(workplace, "train.py", *arguments, "position=alibi,none,sinusoidal")
    assert done.returncode == 2, done.stderr
    assert "error: position=alibi acts on attention logits" in done.stderr
    assert [path.name for path in sorted((workplace / "grid").iterdir()) if path.is_dir()] == [
        "1",
        "2",
    ]
    assert not (workplace / "grid/1/metrics.csv").exists()
    before = {job: weights(workplace / "grid" / job) for job in "12"}
    done = here(workplace, "train.py", *arguments, "position=rope,none,sine_spe")
    assert done.returncode == 2
    assert "grid/1: finished before" in done.stderr
    assert "grid/2 holds another run" in done.stderr
    for job, expected in before.items():
        found = weights(workplace / "grid" / job)
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@needs_optuna
def test_optuna_takes_the_same_course_again(here, workplace):
    def search(folder: str, trials: int):
        arguments = [*OPTUNA, f"hydra.sweeper.n_trials={trials}", f"hydra.sweep.dir={folder}"]
        done = succeed(here(workplace, "train.py", *arguments))
        return done, yaml.safe_load((workplace / folder / "optimization_results.yaml").read_text())

    _, whole = search("whole_search", 4)
    scores = [
        json.loads((workplace / f"whole_search/{job}/finished.json").read_text())["score"]
        for job in range(4)
    ]
    assert whole["best_value"] == min(scores)
    assert set(whole["best_params"]) == {"optimizer.lr", "model.dropout"}
    search("cut_search", 2)
    # Killed after the last step of job 1, before its score was written.
    (workplace / "cut_search/1/finished.json").unlink()
    done, cut = search("cut_search", 4)
    assert cut == whole
    assert done.stderr.count("finished before") == 1
    impossible = [*OPTUNA, "data.num_pieces=1e-30", "hydra.sweeper.n_trials=2"]
    done = here(workplace, "train.py", *impossible, "hydra.sweep.dir=impossible")
    assert done.returncode == 2
    assert done.stderr.count("error: data.num_pieces=1e-30: expected") == 2
    # A run of the search is one like any other.
    arguments = ["resume=cut_search/3", "trainer.max_steps=6"]
    succeed(here(workplace, "train.py", *arguments))


@pytest.mark.parametrize(
    ("arguments", "plugin", "name"),
    [
        (["hparams_search=optuna"], "hydra_optuna_sweeper", "sweeper/optuna"),
        (
            ["-m", "hydra/launcher=submitit_slurm"],
            *("hydra_submitit_launcher", "launcher/submitit_slurm"),
        ),
    ],
)
def test_missing_plugins_are_named(here, tmp_path, arguments, plugin, name):
    if installed(plugin):
        pytest.skip(f"{plugin} is installed")
    done = here(tmp_path, "train.py", *arguments)
    assert_one_line(done, f"hydra/{name}: not installed; run: pip install 'musicgen-symbolic[")


@pytest.mark.parametrize("sweep", ["-m", "hparams_search=optuna"])
def test_a_sweep_does_not_resume_a_run(here, workplace, sweep):
    done = here(workplace, "train.py", "resume=auto", sweep)
    assert_one_line(done, "resume continues one run", "hydra.sweep.dir=FOLDER")


def test_each_run_of_a_sweep_is_a_wandb_run_of_its_own(here, workplace, monkeypatch):
    pytest.importorskip("wandb", reason="no wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    arguments = ["-m", *TINY, *STEPS, "logger=wandb", "seed=1,2", "hydra.sweep.dir=watched"]
    succeed(here(workplace, "train.py", *arguments))
    for job in "01":
        files = list((workplace / "watched" / job / "wandb").glob("offline-run-*/run-*.wandb"))
        assert [path.name for path in files] == [f"run-watched-{job}.wandb"]
