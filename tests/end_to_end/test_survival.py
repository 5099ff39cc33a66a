"""Runs that are killed, stopped or run out of disk end as the uninterrupted ones, bit for bit."""

import re
import shlex
import signal
from pathlib import Path

import pytest
import torch

from musicgen.files import write_text
from tests.end_to_end.command_line import TINY
from tests.end_to_end.deaths import AtHook, InWrite, assert_same_run, train

STEPS = 12
SHORT = (
    *(f"trainer.max_steps={STEPS}", "trainer.val_check_interval=4", "trainer.log_every_n_steps=1"),
    *("scheduler.max_steps=12", "scheduler.warmup_steps=2", "model.dropout=0.1"),
)
# What holds a state of its own: random features, averages, gradients that are accumulated over the
# end of an epoch, learned spans and gates, momenta of matrices.
SETTINGS = {
    "spe": ("callbacks.redraw_features.probability=0.5",),
    "averaged": (
        *("callbacks=averaged", "optimizer=adamw", "position=rope"),
        *("trainer.accumulate_grad_batches=2", "loader.batches_per_epoch=5"),
    ),
    "muon": ("optimizer=muon", "attention=softmax", "position=learnable", "span=gaussian"),
}


def arguments(kind: str, data: Path) -> list[str]:
    return [*TINY, *SHORT, *SETTINGS[kind], f"paths.data_dir={data}", "hydra.run.dir=outputs/run"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("uninterrupted")
    for kind in SETTINGS:
        assert train(folder / kind, *arguments(kind, folder / "data")) == 0
    return {kind: folder / kind / "outputs/run" for kind in SETTINGS}


def data_of(run: Path) -> Path:
    return run.parents[2] / "data"


def resume(data: Path, run: str = "auto") -> list[str]:
    return [f"resume={run}", f"paths.data_dir={data}"]


# At hooks between which a step changes what is saved, and in writes of a checkpoint.
DEATHS = [
    ("averaged", AtHook(7, "on_before_optimizer_step")),
    ("muon", AtHook(8, "on_validation_batch_end")),
    ("spe", InWrite(3, 0.4)),
    ("averaged", InWrite(4, None)),
]
STOPS = [("spe", signal.SIGTERM), ("averaged", signal.SIGUSR1), ("muon", signal.SIGINT)]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "death"), DEATHS, ids=str)
def test_a_killed_run_resumes_as_if_nothing_had_happened(uninterrupted, tmp_path, kind, death):
    data = data_of(uninterrupted[kind])
    assert train(tmp_path, *arguments(kind, data), death=death) == -signal.SIGKILL
    assert train(tmp_path, *resume(data)) == 0, (tmp_path / "stderr").read_text()
    assert "Traceback" not in (tmp_path / "stderr").read_text()
    assert_same_run(tmp_path / "outputs/run", uninterrupted[kind])


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "number"), STOPS)
def test_a_stopped_run_saves_its_step(uninterrupted, tmp_path, kind, number):
    """As SLURM and schedulers of spot machines stop runs: a signal, and a kill somewhat later."""
    data, death = data_of(uninterrupted[kind]), AtHook(5, "on_after_backward", number)
    write_text(tmp_path / "my own/experiment/mine.yaml", "# @package _global_\n")
    own = ("-cd", "my own", "experiment=mine")
    assert train(tmp_path, *own, *arguments(kind, data), death=death) == 130
    stderr = (tmp_path / "stderr").read_text()
    assert "Traceback" not in stderr
    (command,) = re.findall("^to continue: python train.py (.*)$", stderr, re.M)
    assert '"\'"' not in command  # quotes in quotes
    last = torch.load(tmp_path / "outputs/run/checkpoints/last.ckpt", weights_only=True)
    assert last["global_step"] == death.step + 1
    assert train(tmp_path, *shlex.split(command)) == 0
    assert_same_run(tmp_path / "outputs/run", uninterrupted[kind])
