"""Groups of parameters, Muon and AdamW in one optimizer, and schedules."""

import re
from functools import partial

import pytest
import torch
from hydra.utils import instantiate
from torch import distributed
from torch.nn import functional as F

from musicgen.errors import ParameterError
from musicgen.random import NoiseKey
from musicgen.training import optimizers
from musicgen.training.optimizers import MuonAdamW, parameter_groups
from musicgen.training.schedules import inverse_sqrt, warmup_cooldown, warmup_cosine
from tests.end_to_end.deaths import call_in_two_processes
from tests.models.test_one_graph import Kernels

VOCABULARY = 7
SMALL = ("model.dim=16", "model.num_layers=2", "model.num_heads=2", "model.ff_dim=24")
PLAIN = ("position=sine_spe", "attention=favor", "model.short_conv=null")


@pytest.fixture(params=[None, 4], ids="attention_dim={}".format)
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
    logits = model(tokens[:, :-1], noise=NoiseKey((step,)))
    F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()


def test_matrices_of_one_shape_are_orthogonalised_together(models, monkeypatch):
    products, models = [], [model.double() for model in models]
    for model, devices in zip(models, ({"cuda"}, {"cpu"}), strict=True):
        monkeypatch.setattr(optimizers, "_STACKING", devices)
        optimizer = MuonAdamW(model, lr=0.02, weight_decay=0.1)
        for step in range(2):
            backward(model, step)
            with Kernels() as kernels:
                optimizer.step()
        counts = kernels.counts
        products.append(counts["aten.addmm.default"] + counts["aten.baddbmm.default"])
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-9)
    layers = models[0].layers  # of three maps of queries, keys and values, and three more matrices
    shapes = {layers[0].qkv.weight[: len(layers[0].qkv.weight) // 3].shape}
    shapes |= {part.weight.shape for part in (layers[0].out, layers[0].ff_in, layers[0].ff_out)}
    assert products == [5 * 2 * 6 * len(layers), 5 * 2 * len(shapes)]


MATRICES = torch.randn(5, 6, 4, generator=torch.Generator().manual_seed(0))


def orthogonalize_in_one_process(folder) -> None:
    distributed.init_process_group("gloo")
    with Kernels() as kernels:
        found = optimizers.orthogonalize_all(MATRICES.unbind())
    rank = distributed.get_rank()
    torch.save((found, kernels.counts["aten.addmm.default"]), folder / f"{rank}.pt")
    distributed.destroy_process_group()


@pytest.mark.slow
def test_each_process_orthogonalizes_a_share_of_the_matrices(tmp_path):
    assert call_in_two_processes(orthogonalize_in_one_process, tmp_path) == 0
    expected = optimizers.orthogonalize_all(MATRICES.unbind())
    for rank in range(2):
        found, products = torch.load(tmp_path / f"{rank}.pt")
        assert torch.equal(torch.stack(found), torch.stack(expected))
        assert products == 5 * 2 * 3  # of three matrices, where one process has five


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


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "muon"])
def test_rates_of_a_copy_head_are_factors_of_the_others(config, optimizer):
    cfg = config("train", *SMALL, f"optimizer={optimizer}", "model.copy={window: 64}")
    model = instantiate(cfg.model, vocab_size=VOCABULARY)
    built = instantiate(cfg.optimizer)(model)
    rate = cfg.optimizer.adamw_lr if optimizer == "muon" else cfg.optimizer.lr
    names = {parameter: name for name, parameter in model.named_parameters()}
    pairs = [(names[p], group) for group in built.param_groups for p in group["params"]]
    found = dict(pairs)
    assert len(pairs) == len(names)  # each is in one group
    assert found.keys() == {*names.values()}
    if optimizer == "muon":
        assert {p.dim() for p in built.param_groups[0]["params"]} == {2}
        assert found["inputs.embedding.weight"] is found["head.weight"] is built.param_groups[1]
    factors = {"lag_bias": 75, "match_steps": 40, "gate_steps": 40, "projection.weight": 1}
    for name, factor in factors.items():
        group = found[f"copy_head.{name}"]
        assert group["lr"] == pytest.approx(factor * rate)
        decay = 0.1 if optimizer == "adamw" else 0  # the same share of a parameter in a step
        assert group["lr"] * group["weight_decay"] == pytest.approx(rate * decay)


@pytest.mark.parametrize(
    ("optimizer", "train"),
    [("adam", "copy_head"), ("adamw", r"layers\.1\..*weight"), ("muon", r"layers\.1\..*weight")],
)
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


def test_an_expression_that_matches_nothing_is_refused():
    message = r"^train=copies: it matches no .* begin with weight"
    with pytest.raises(ParameterError, match=message):
        parameter_groups(torch.nn.Linear(1, 1, bias=False), 1.0, train="copies")


def rates(build, steps, **settings):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0)
    scheduler = build(optimizer, **settings)
    found = []
    for _ in range(steps):
        found.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return found


def test_schedules_by_hand(config):
    found = rates(warmup_cosine, 20, warmup_steps=4, max_steps=14, min_lr=1.0)
    assert found[:5] == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.0])
    assert found[9] == pytest.approx(1.5)  # half-way down from 2 to 1
    assert found[14:] == pytest.approx([1.0] * 6)
    for warmup_steps in (0, 1):  # none begins at the full rate, too
        found = rates(inverse_sqrt, 4, warmup_steps=warmup_steps)
        assert found == pytest.approx([2 / (step + 1) ** 0.5 for step in range(4)])
    found = rates(warmup_cooldown, 10, warmup_steps=2, max_steps=10, cooldown=0.4)
    assert found == pytest.approx([1, 2, 2, 2, 2, 2, 2, 1.5, 1, 0.5])
    assert rates(warmup_cooldown, 2, warmup_steps=0, max_steps=1, cooldown=0.4) == [2, 0]
    constant = instantiate(config("train", "scheduler=constant").scheduler)
    assert rates(constant, 9) == [2.0] * 9
