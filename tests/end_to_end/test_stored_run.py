"""A run that 0.1.0 wrote loads, computes what it computed then, generates, and goes on."""

import shutil

import torch

from musicgen import load
from tests.end_to_end.command_line import ROOT, succeed

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
