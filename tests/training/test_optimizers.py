"""Groups of parameters, and Muon beside AdamW in one optimizer."""

from __future__ import annotations

import re
from functools import partial

import pytest
import torch
from hydra.utils import instantiate
from torch.nn import functional as F

from musicgen.errors import ParameterError
from musicgen.training.optimizers import MuonAdamW, orthogonalize, parameter_groups
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


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "muon"])
def test_rates_of_a_copy_head_are_factors_of_the_others(config, optimizer):
    cfg = config("train", *SMALL, f"optimizer={optimizer}", "model.copy={window: 64}")
    model = instantiate(cfg.model, vocab_size=VOCABULARY)
    built = instantiate(cfg.optimizer)(model)
    rate = cfg.optimizer.adamw_lr if optimizer == "muon" else cfg.optimizer.lr
    names = {parameter: name for name, parameter in model.named_parameters()}
    found = {names[p]: group for group in built.param_groups for p in group["params"]}
    assert found.keys() == {*names.values()}
    factors = {"lag_bias": 75, "match_steps": 40, "gate_steps": 40, "projection.weight": 1}
    for name, factor in factors.items():
        group = found[f"copy_head.{name}"]
        assert group["lr"] == pytest.approx(factor * rate)
        decay = 0.1 if optimizer == "adamw" else 0  # the same share of a parameter in a step
        assert group["lr"] * group["weight_decay"] == pytest.approx(rate * decay)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "muon"])
@pytest.mark.parametrize("train", ["copy_head", r"layers\.1\..*weight"])
def test_the_other_parameters_are_frozen(config, optimizer, train):
    settings = (f"optimizer={optimizer}", f"optimizer.train='{train}'", "model.copy={window: 64}")
    cfg = config("train", *SMALL, *settings)
    model = instantiate(cfg.model, vocab_size=VOCABULARY)
    built = instantiate(cfg.optimizer)(model)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    tokens = torch.randint(VOCABULARY, (2, 9))
    positions = torch.arange(9)[None, :, None].expand(2, -1, 3)
    model(tokens, positions=positions).square().mean().backward()
    built.step()
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert moved
    assert {n for n, p in model.named_parameters() if p.requires_grad} >= moved
    assert all(re.match(train, name) for name in moved)
    assert all(p.grad is None for n, p in model.named_parameters() if not re.match(train, n))


def test_an_expression_that_matches_nothing_is_refused(models):
    with pytest.raises(
        ParameterError, match=r"^train=copies: it matches no .* begin with .*layers"
    ):
        parameter_groups(models[0], 1.0, train="copies")


def test_new_settings_apply_to_their_groups_on_resume(run, tmp_path):
    settings = ("optimizer=muon", "scheduler.warmup_steps=0", "scheduler.min_lr=1")
    run("first", "trainer.max_steps=2", "scheduler.max_steps=9", *settings)
    last = tmp_path / "first/checkpoints/last.ckpt"
    new = ("optimizer.lr=0.01", "optimizer.adamw_lr=1e-4", "optimizer.momentum=0.9")
    run("first", "trainer.max_steps=3", "scheduler.max_steps=9", *settings, *new, resume=last)
    matrices, others = saved(tmp_path / "first")["optimizer_states"][0]["param_groups"]
    assert (matrices["lr"], matrices["momentum"], others["lr"]) == (0.01, 0.9, 1e-4)
    assert others["betas"] == (0.9, 0.95)
