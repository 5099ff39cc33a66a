"""The memory of a training step, before it is taken."""

from __future__ import annotations

import re

import pytest
import torch

from musicgen.errors import UserError
from musicgen.training import memory
from musicgen.training.memory import PeakMemory, step_memory

KB = 1000  # 250 numbers
ON = "callbacks.memory={_target_: musicgen.training.memory.EstimateMemory}"


def test_the_peak_by_hand():
    given = torch.ones(250)
    with PeakMemory() as counted:
        a = given + 1
        b = a.view(10, 25)  # no memory of its own
        del a
        c = torch.cat([b, b])
        assert counted.peak == 3 * KB
        del b, c
        c = given * 2
        c.mul_(2)
    assert counted.peak == 3 * KB
    del c


class Keep(memory.EstimateMemory):
    """Keep the arguments of the first step."""

    kept: list = []  # noqa: RUF012

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if not self.kept:
            self.kept.append(step_memory(pl_module, batch))
            with PeakMemory() as counted:
                loss = pl_module.task.loss(pl_module.model, batch, None)
                torch.autograd.grad(loss, list(pl_module.parameters()), allow_unused=True)
            moments = 2 * 4 * sum(p.numel() for p in pl_module.parameters())
            self.kept.append(counted.peak + moments)


@pytest.mark.parametrize("overrides", [(), ("recompute=true",), ("attention=softmax",)])
def test_rows_add_up_to_the_batch(run, monkeypatch, overrides):
    monkeypatch.setattr(Keep, "kept", [])
    keep = f"callbacks.memory={{_target_: {__name__}.Keep}}"
    run("run", "trainer.max_steps=1", "loader.batch_size=12", "loader.length=300", keep, *overrides)
    estimated, measured = Keep.kept
    assert estimated == pytest.approx(measured, rel=0.15)


def test_the_first_step_is_estimated_and_too_little_memory_warned_of(run, monkeypatch, capsys):
    options = ("attention=favor", "model.attention.decay=token", "trainer.precision=bf16-mixed")
    run("free", ON, "trainer.max_steps=1", *options)
    assert re.search(r"a step takes about \S+ GB of memory; \S+ GB are free$", shown(capsys))
    monkeypatch.setattr(memory, "free_memory", lambda device: 1)
    run("scarce", ON, "trainer.max_steps=1")
    assert re.search(r"are free: .*loader\.batch_size .*recompute=true", shown(capsys))


def shown(capsys) -> str:
    lines = capsys.readouterr().err.splitlines()
    return next(line for line in lines if line.startswith("a step takes"))


def test_an_allocation_that_fails(run, monkeypatch):
    monkeypatch.setattr(memory.EstimateMemory, "on_train_batch_start", lambda *_: torch.ones(2**60))
    cures = r"more memory than there is: .*loader\.batch_size .* recompute=true"
    with pytest.raises(UserError, match=cures):
        run("huge", ON, "trainer.max_steps=1")
