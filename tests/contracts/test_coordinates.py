"""Contracts of every encoding in conf/position that reads coordinates."""

import copy

import pytest
import torch
from hydra.errors import InstantiationException
from hydra.utils import get_class
from torch import Tensor

from musicgen.errors import UserError
from musicgen.models import Transformer
from musicgen.position import Site
from tests.contracts.pairs import (
    NOISE,
    POSITIONS,
    VOCAB,
    Pair,
    assert_all_learn,
    decode,
    draw,
    load,
    pair,
    shared,
    site,
)

LENGTH = 50
EXACT = {"position.num_realizations": None}
READING = [p for p in POSITIONS if "coordinates" in load("position", p)]
FITTING = [(p, a, {}) for p in READING for a in ("favor", "elu", "softmax") if site(p, a)]
FITTING += [("sine_spe", a, EXACT) for a in ("favor", "elu", "softmax")]


def reading(position: str, attention: str, more: dict, coordinates) -> Pair:
    """Return a pair whose encoding reads coordinates: a name, or a tuple of them."""
    settings = more | {"position.coordinates": coordinates, "init_std": 0.2}
    if position == "siren" and not isinstance(coordinates, str):
        settings["position.training_length"] = (40,) * len(coordinates)
    return pair(position, attention, settings)


def takes_two(each: tuple[str, str, dict]) -> bool:
    """Return whether an encoding reads two coordinates."""
    try:
        shared(reading(*each, ("time", "pitch")))
    except (UserError, InstantiationException):
        return False
    return True


JOINT = [each for each in FITTING if takes_two(each)]
MODELS = [reading(*each, "time") for each in FITTING]
MODELS += [reading(*each, ("time", "pitch")) for each in JOINT]


def exactly_relative(each: Pair) -> bool:
    """Return whether outputs, and not their expectation alone, depend on lags."""
    exact = get_class(load("position", each.position)._target_).relative == "exact"
    exact = exact or ("position.num_realizations", None) in each.settings
    return exact and (each.attention == "softmax" or site(*each[:2]) == Site.FEATURE)


@pytest.fixture(params=MODELS, ids=str)
def model(request) -> Transformer:
    return shared(request.param)


def music() -> tuple[Tensor, Tensor]:
    """Tokens [2, L] and their positions [2, L, 3]: index, time with rests, and pitch."""
    generator = torch.Generator().manual_seed(3)
    ids = draw(VOCAB, 2, LENGTH, generator=generator)
    steps = torch.tensor([0, 0, 0, 1, 2, 5])[draw(6, 2, LENGTH, generator=generator)]
    index = torch.arange(LENGTH).expand(2, -1)
    pitch = draw(20, 2, LENGTH, generator=generator)
    return ids, torch.stack((index, steps.cumsum(1), pitch), dim=-1)


@torch.no_grad()
def test_recurrent_equals_parallel(model):
    ids, positions = music()
    parallel = model(ids, positions=positions, noise=NOISE)
    assert parallel.std() > 0.1
    first, state = model.forward_with_state(ids[:, :42], positions=positions[:, :42], noise=NOISE)
    rest = decode(model, ids[:, 42:], state, positions[:, 42:])
    torch.testing.assert_close(torch.cat((first, rest), dim=1), parallel, atol=1e-4, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("fitting", FITTING, ids=str)
def test_time_that_counts_tokens_is_the_index(fitting):
    by_index, by_time = (shared(reading(*fitting, name)) for name in ("index", "time"))
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
@pytest.mark.parametrize("model", filter(exactly_relative, MODELS), indirect=True, ids=str)
def test_shifted_positions_change_nothing_where_the_encoding_is_exactly_relative(model):
    ids, positions = music()
    here = model(ids, positions=positions)
    there = model(ids, positions=positions + torch.tensor([3, 11, 5]))
    torch.testing.assert_close(there, here, atol=1e-4, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("fitting", JOINT, ids=str)
def test_both_coordinates_matter(fitting):
    model = shared(reading(*fitting, ("index", "time")))
    ids, positions = music()
    before = model(ids, positions=positions, noise=NOISE)
    for dim in (0, 1):
        moved = positions.clone()
        moved[:, 30:, dim] += 4
        after = model(ids, positions=moved, noise=NOISE)
        torch.testing.assert_close(after[:, :30], before[:, :30], atol=1e-4, rtol=0)
        assert (after[:, 30:] - before[:, 30:]).abs().max() > 1e-3


def test_gradients_reach_every_parameter(model):
    assert_all_learn(copy.deepcopy(model), *music())


def test_positions_must_be_given():
    model = shared(reading(*FITTING[0], "time"))
    with pytest.raises(UserError, match="reads 2 coordinates of each position, index, time"):
        model(music()[0])
