"""Sweeps: a folder a job, and searches with Optuna."""

import re
import shutil

import pytest
import torch
import yaml
from hydra import compose, initialize_config_dir

from musicgen.files import read_csv
from tests.conftest import ROOT
from tests.end_to_end.command_line import TINY, assert_one_line, succeed

STEPS = ("trainer.max_steps=4", "trainer.val_check_interval=2")
OPTUNA = (*TINY, *STEPS, "hparams_search=optuna", "hydra.sweeper.sampler.n_startup_trials=2")


def weights(folder):
    return torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["state_dict"]


def test_a_sweep_goes_on_after_an_impossible_combination_and_keeps_other_runs(here, workplace):
    arguments = ["-m", *TINY, *STEPS, "run_name=grid", "logger=none", "position=alibi,none"]
    done = here(workplace, "train.py", *arguments)
    assert done.returncode == 2, done.stderr
    assert "error: position=alibi acts on attention logits" in done.stderr
    (sweep,) = (workplace / "outputs/grid").iterdir()
    assert sweep.name.endswith("_multirun")
    assert [path.name for path in sweep.iterdir() if path.is_dir()] == ["1"]
    assert not (sweep / "1/metrics.csv").exists()
    refused, ended = read_csv(sweep / "jobs.csv")
    assert refused["outcome"].startswith("error: position=alibi acts on attention logits")
    assert ended["outcome"].startswith("ended at step 4, after")
    assert 0 < float(ended["score"]) < 10
    assert re.search(r"0 │ position=alibi │ error: .*n/a", done.stdout)
    assert re.search(r"1 │ position=none +│ ended at step 4, ", done.stdout)
    before = weights(sweep / "1")
    done = here(workplace, "train.py", *arguments, "seed=3", f"hydra.sweep.dir={sweep}")
    assert done.returncode == 2
    assert f"{sweep}/1 holds another run" in done.stderr
    assert all(torch.equal(before[name], tensor) for name, tensor in weights(sweep / "1").items())
    shutil.rmtree(sweep)


def test_a_sweep_without_a_job_is_an_error(here, tmp_path):
    done = here(tmp_path, "train.py", "-m", "experiment=glob(nothing*)", "seed=1,2")
    assert_one_line(done, "experiment=glob(nothing*): matches no choice; the sweep has no job")


@pytest.mark.parametrize(
    ("choice", "cure"),
    [
        (
            "launcher=joblib",
            "hydra/launcher=joblib: not installed; run: pip install hydra-joblib-l",
        ),
        (
            "launcher=submitit_x",
            "launcher=submitit_x: not installed; run: pip install -e '.[slurm]'",
        ),
        ("launcher=joblob", "Could not find 'hydra/launcher/joblob'"),
    ],
)
def test_a_launcher_that_is_missing_is_named_with_its_package(here, tmp_path, choice, cure):
    assert_one_line(here(tmp_path, "train.py", "-m", f"hydra/{choice}"), cure)


def test_a_search_finds_the_best(here, workplace):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="needs the extra optuna")
    arguments = [*OPTUNA, "hydra.sweeper.n_trials=2"]
    done = succeed(here(workplace, "train.py", *arguments, "hydra.sweep.dir=search"))
    assert "alembic" not in done.stdout + done.stderr
    found = yaml.safe_load((workplace / "search/optimization_results.yaml").read_text())
    assert set(found["best_params"]) == {"optimizer.lr", "model.dropout"}
    runs = [workplace / f"search/{job}/checkpoints/best.ckpt" for job in range(2)]
    states = [torch.load(run, weights_only=True)["callbacks"].values() for run in runs]
    scores = [
        float(x["best_model_score"]) for state in states for x in state if "best_model_score" in x
    ]
    assert found["best_value"] == pytest.approx(min(scores))


@pytest.mark.parametrize(("task", "direction"), [("groove", "minimize"), ("listops", "maximize")])
def test_a_search_wants_low_losses_and_high_accuracies(task, direction):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="needs the extra optuna")
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        choices = [f"task={task}", "hparams_search=optuna"]
        cfg = compose("train", choices, return_hydra_config=True)
    assert cfg.hydra.sweeper.direction == direction


def test_a_search_for_accuracy_avoids_impossible_combinations(here, tmp_path):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="needs the extra optuna")
    sizes = [each for each in OPTUNA if not each.startswith(("data.", "model.num_heads"))]
    sizes += [f"data.num_{split}=8" for split in ("train", "val", "test")]
    searched = ["model.num_heads=2,3", "hydra.sweeper.n_trials=3", "hydra.sweep.dir=search"]
    done = here(tmp_path, "train.py", *sizes, "task=listops", *searched)
    assert "error: model.num_heads=3: expected a divisor" in done.stderr
    found = yaml.safe_load((tmp_path / "search/optimization_results.yaml").read_text())
    assert 0 <= found["best_value"] <= 1


@pytest.mark.parametrize("sweep", ["-m", "hparams_search=optuna"])
def test_a_sweep_does_not_resume_a_run(here, workplace, sweep):
    done = here(workplace, "train.py", "resume=auto", sweep)
    assert_one_line(done, "resume continues one run", "one job's folder of the sweep")
