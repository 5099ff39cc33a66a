"""Muon beside AdamW in one optimizer."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hydra.utils import instantiate
from torch.nn import functional as F

from musicgen.training.muon import MuonAdamW, orthogonalize
from tests.training.conftest import saved

VOCABULARY = 7
SMALL = ("model.dim=16", "model.num_layers=2", "model.num_heads=2", "model.ff_dim=24")
PLAIN = ("position=sine_spe", "attention=favor", "model.short_conv=null")


@pytest.fixture(params=[None, 4, 32], ids="attention_dim={}".format)
def models(config, request):
    """Two models with the same weights."""
    cfg = config("train", *SMALL, *PLAIN)
    build = partial(instantiate, cfg.model, vocab_size=VOCABULARY, attention_dim=request.param)
    pair = [build() for _ in range(2)]
    pair[1].load_state_dict(pair[0].state_dict())
    return pair


def backward(model, step: int) -> None:
    tokens = torch.randint(VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(step))
    model.zero_grad()
    logits = model(tokens[:, :-1])
    F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()


def test_steps_are_those_of_torch_with_queries_keys_and_values_apart(models):
    fused, split = (model.bfloat16() for model in models)  # in which torch's orthogonalises
    optimizer = MuonAdamW(fused, lr=0.02, weight_decay=0.1, adamw_lr=3e-3, betas=(0.8, 0.9))
    # The same with torch's two optimizers: Muon has a parameter for each map.
    maps, owners = [], []
    for layer in split.layers:
        for linear in (layer.qkv, layer.out, layer.ff_in, layer.ff_out):
            number = 3 if linear is layer.qkv else 1
            chunks = [torch.nn.Parameter(c.clone()) for c in linear.weight.detach().chunk(number)]
            maps.append(chunks)
            owners.append(linear.weight)
    owned = {id(weight) for weight in owners}
    others = [p for p in split.parameters() if id(p) not in owned]
    flat = [chunk for chunks in maps for chunk in chunks]
    muon = torch.optim.Muon(flat, lr=0.02, momentum=0.95, weight_decay=0.1)
    adamw = torch.optim.AdamW(others, lr=3e-3, betas=(0.8, 0.9), weight_decay=0)
    for step in range(3):
        for model in models:
            backward(model, step)
        for chunks, weight in zip(maps, owners, strict=True):
            for chunk, gradient in zip(chunks, weight.grad.chunk(len(chunks)), strict=True):
                chunk.grad = gradient.clone()
        optimizer.step()
        muon.step()
        adamw.step()
        for chunks, weight in zip(maps, owners, strict=True):
            weight.data.copy_(torch.cat([chunk.detach() for chunk in chunks]))
    for (name, ours), theirs in zip(fused.named_parameters(), split.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("shape", [(5, 8), (8, 5), (6, 6)])
def test_orthogonalize_maps_the_singular_values(shape):
    matrix = torch.randn(shape, dtype=torch.float64)
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    s /= matrix.norm()
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    torch.testing.assert_close(orthogonalize(matrix), u @ s.diag() @ v)


def test_every_parameter_is_in_one_group(models):
    model, _ = models
    matrices, others = MuonAdamW(model, lr=0.02).param_groups
    assert {p.dim() for p in matrices["params"]} == {2}
    ids = [id(p) for group in (matrices, others) for p in group["params"]]
    assert sorted(ids) == sorted(id(p) for p in model.parameters())
    assert {id(model.embedding.weight), id(model.head.weight)} <= {id(p) for p in others["params"]}
    assert matrices["params"]


def test_one_rate_for_both_groups_keeps_their_proportion(models):
    model, _ = models
    optimizer = MuonAdamW(model, lr=0.02, adamw_lr=1e-3)
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    backward(model, 0)
    before = model.embedding.weight.detach().clone()
    optimizer.step()
    step = (model.embedding.weight.detach() - before).abs().max()
    torch.testing.assert_close(step, torch.tensor(5e-3), rtol=1e-3, atol=0)


def test_new_settings_apply_to_their_groups_on_resume(run, tmp_path):
    settings = ("optimizer=muon", "scheduler.warmup_steps=0", "scheduler.min_lr=1")
    run("first", "trainer.max_steps=2", "scheduler.max_steps=9", *settings)
    last = tmp_path / "first/checkpoints/last.ckpt"
    new = ("optimizer.lr=0.01", "optimizer.adamw_lr=1e-4", "optimizer.momentum=0.9")
    run("first", "trainer.max_steps=3", "scheduler.max_steps=9", *settings, *new, resume=last)
    matrices, others = saved(tmp_path / "first")["optimizer_states"][0]["param_groups"]
    assert (matrices["lr"], matrices["momentum"], others["lr"]) == (0.01, 0.9, 1e-4)
    assert others["betas"] == (0.9, 0.95)
