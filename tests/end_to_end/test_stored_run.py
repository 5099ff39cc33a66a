"""A run that 0.1.0 wrote loads, computes what it computed then, generates, and goes on."""

import shutil
from typing import Any

import pytest
import torch

from musicgen import load
from tests.end_to_end.command_line import ROOT, assert_one_line, succeed

STORED = ROOT / "tests/data/run_0_1"
LOGITS = [0.030073, -0.038163, -0.070552, 0.025814, -0.165960]  # of the tokens 0 to 4 after 0 to 63


def test_the_run_that_0_1_wrote(here, tmp_path):
    with torch.no_grad():
        logits = load(STORED).model(torch.arange(64)[None])[0, -1, :5]
    torch.testing.assert_close(logits, torch.tensor(LOGITS), rtol=1e-4, atol=1e-5)
    shutil.copytree(STORED, tmp_path / "run")
    succeed(here(tmp_path, "generate.py", "checkpoint=run", "bars=1", "report=false", "out=new"))
    done = succeed(here(tmp_path, "train.py", "resume=run", "trainer.max_steps=6"))
    assert "ended at step 6, after" in done.stderr
    assert load(tmp_path / "run").content.steps == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loops": 5}, "loops: Input should be a valid dictionary"),
        ({"loops": {"fit_loop": {"epoch_loop.batch_progress": "x"}}}, "loops.fit_loop"),
        ({"loops": {}}, "cannot be restored (KeyError('fit_loop')); begin a new run with its w"),
        ({"callbacks": {"LogCost": [5]}}, "callbacks.LogCost: Input should be a valid dict"),
        ({"optimizer_states": [{}]}, "optimizer_states.0.state: Field required"),
        ({"optimizer_states": [{"state": {}, "param_groups": []}]}, "cannot be restored"),
        ({"lr_schedulers": [None]}, "lr_schedulers.0: Input should be a valid dictionary"),
        ({"global_step": "x"}, "a damaged musicgen checkpoint (steps: Input should be a valid int"),
        ({"pytorch-lightning_version": "x"}, "cannot be restored (InvalidVersion("),
    ],
    ids=str,
)
def test_a_state_of_training_that_is_none_is_one_line(here, tmp_path, change, message):
    shutil.copytree(STORED, tmp_path / "run")
    last = tmp_path / "run/checkpoints/last.ckpt"
    checkpoint: dict[str, Any] = torch.load(last, weights_only=True)
    torch.save(checkpoint | change, last)
    done = here(tmp_path, "train.py", "resume=run", "trainer.max_steps=6")
    assert_one_line(done, "run/checkpoints/last.ckpt: ", message)
