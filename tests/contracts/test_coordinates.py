"""Contracts of every encoding in conf/position that reads coordinates."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from torch import Tensor

from musicgen.errors import UserError
from musicgen.models import Transformer, check_compatible
from musicgen.position import Site
from musicgen.random import NoiseKey

POSITIONS = sorted(
    path.stem
    for path in (Path(__file__).parents[2] / "conf" / "position").glob("*.yaml")
    if "coordinates:" in path.read_text()
)
VOCAB, LENGTH, NOISE = 30, 50, NoiseKey((7, 1))
SMALL = (
    "model.dim=16",
    "model.num_layers=2",
    "model.num_heads=2",
    "model.ff_dim=32",
    "model.init_std=0.2",
)
VARIANTS: dict[str, tuple[str, ...]] = {
    "conv_spe": ("model.position.filter_length=9", "model.position.num_realizations=12"),
    "sine_spe": ("model.position.num_realizations=12",),
    "exact": ("model.position.num_realizations=null",),
}
ONE_DIMENSION = ("conv_spe", "lrpe_permutation", "permute")
SIREN_LENGTH = {"index": "40", "time": "40"}  # else of two coordinates
COORDINATES = {  # and whether the heads take them in turn
    "time": ("time", "false"),
    "list": ("[time,pitch]", "false"),
    "per_head": ("[pitch,index]", "true"),
}


def build(
    config, position: str, attention: str, coordinates: str, per_head: str = "false"
) -> Transformer:
    more = VARIANTS.get(position, ())
    position = "sine_spe" if position == "exact" else position
    if position == "siren":
        more = (f"model.position.training_length={SIREN_LENGTH.get(coordinates, '[40,40]')}",)
    if per_head == "true":
        more += ("model.position.per_head=true",)
    cfg = config(
        "train",
        f"position={position}",
        f"attention={attention}",
        f"model.position.coordinates={coordinates}",
        *SMALL,
        *more,
    )
    try:
        check_compatible(instantiate(cfg.model.position), instantiate(cfg.model.attention))
    except UserError as refused:
        pytest.skip(str(refused))
    torch.manual_seed(1)
    return instantiate(cfg.model, vocab_size=VOCAB).eval()


@pytest.fixture(params=[*POSITIONS, "exact"])
def position(request) -> str:
    return request.param


@pytest.fixture(params=["favor", "elu", "softmax"])
def attention(request) -> str:
    return request.param


@pytest.fixture(params=COORDINATES)
def model(request, config, position, attention) -> Transformer:
    refused = {"list": ONE_DIMENSION, "per_head": ("conv_spe",)}
    if position in refused.get(request.param, ()):
        pytest.skip("refused: see below")
    return build(config, position, attention, *COORDINATES[request.param])


def music(seed: int = 3) -> tuple[Tensor, Tensor]:
    """Tokens [2, L] and their positions [2, L, 3]: index, time with rests, and pitch."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCAB, (2, LENGTH), generator=generator)
    steps = torch.tensor([0, 0, 0, 1, 2, 5])[torch.randint(6, (2, LENGTH), generator=generator)]
    index = torch.arange(LENGTH).expand(2, -1)
    pitch = torch.randint(0, 20, (2, LENGTH), generator=generator)
    return ids, torch.stack((index, steps.cumsum(1), pitch), dim=-1)


@torch.no_grad()
def test_recurrent_equals_parallel(model):
    ids, positions = music()
    parallel = model(ids, positions=positions, noise=NOISE)
    assert parallel.std() > 0.1
    out, state = model.forward_with_state(ids[:, :17], positions=positions[:, :17], noise=NOISE)
    found = [out]
    for n in range(17, LENGTH):
        out, state = model.forward_with_state(
            ids[:, n : n + 1],
            positions=positions[:, n : n + 1],
            noise=NOISE,
            state=state,
        )
        found.append(out)
    torch.testing.assert_close(torch.cat(found, dim=1), parallel, atol=1e-4, rtol=0)


@torch.no_grad()
def test_time_that_counts_tokens_is_the_index(config, position, attention):
    by_index, by_time = (build(config, position, attention, c) for c in ("index", "time"))
    ids, positions = music()
    counting = positions[..., :1].expand(-1, -1, 2)
    expected = by_index(ids, noise=NOISE)
    torch.testing.assert_close(
        by_time(ids, positions=counting, noise=NOISE), expected, atol=1e-5, rtol=0
    )
    # And nothing else of a position is read.
    out = by_time(ids, positions=positions, noise=NOISE)
    positions[..., 0] += 5
    torch.testing.assert_close(by_time(ids, positions=positions, noise=NOISE), out)
    assert (out - expected).abs().max() > 1e-3


@torch.no_grad()
def test_shifted_positions_change_nothing_where_the_encoding_is_exactly_relative(model):
    attention = model.layers[0].attention
    before_features = attention.name == "linear" and attention.site == Site.QUERY_KEY
    if model.position.relative != "exact" or before_features:
        pytest.skip("relative in expectation only")
    ids, positions = music()
    here = model(ids, positions=positions)
    there = model(ids, positions=positions + torch.tensor([3, 11, 5]))
    torch.testing.assert_close(there, here, atol=1e-4, rtol=0)


@torch.no_grad()
def test_both_coordinates_matter(config, position, attention):
    if position in ONE_DIMENSION:
        pytest.skip("refused: see below")
    model = build(config, position, attention, "both")
    ids, positions = music()
    before = model(ids, positions=positions, noise=NOISE)
    for dim in (0, 1):
        moved = positions.clone()
        moved[:, 30:, dim] += 4
        after = model(ids, positions=moved, noise=NOISE)
        torch.testing.assert_close(after[:, :30], before[:, :30], atol=1e-4, rtol=0)
        assert (after[:, 30:] - before[:, 30:]).abs().max() > 1e-3


def test_gradients_reach_every_parameter(model):
    ids, positions = music()
    model.train()
    model(ids, positions=positions, noise=NOISE).square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("position", ONE_DIMENSION)
def test_one_dimensional_encodings_refuse_both(config, position):
    cfg = config("train", f"position={position}", "model.position.coordinates=both")
    with pytest.raises(UserError, match=r"^coordinates=both: expected index"):
        instantiate(cfg.model.position)(2, 2, 8, 16)


def test_positions_must_be_given(config, position, attention):
    model = build(config, position, attention, "time")
    with pytest.raises(UserError, match=f"{model.position.name} reads coordinate 2"):
        model(music()[0])
