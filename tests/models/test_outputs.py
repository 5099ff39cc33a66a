"""What a model returns of its inside, and the coordinates that it computes from ids."""

from functools import partial

import numpy as np
import pytest
import torch

from musicgen.attention import ELU, FAVOR, LinearAttention, SoftmaxAttention
from musicgen.errors import UserError
from musicgen.position import NoPosition, PermuteFormer, RoPE
from musicgen.tokenization import REMI
from musicgen.tokenization.coordinates import Coordinates, match_classes
from tests.models.builders import random_tokens, small
from tests.tokenization.conftest import random_walk

IDS = random_tokens(2, 9)


def linear(feature_map=ELU):
    return partial(LinearAttention, feature_map=feature_map)


def test_hidden_states_begin_with_the_input_of_the_first_layer():
    model = small(norm_first=True)
    states = model.hidden_states(IDS)
    assert len(states) == 1 + len(model.layers)
    torch.testing.assert_close(states[0], model.embedding(IDS) * model.embedding_scale)
    torch.testing.assert_close(model.head(model.norm(states[-1])), model(IDS))
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in model.layers)


@pytest.mark.parametrize(
    ("position", "attention"),
    [
        *((NoPosition, each) for each in (SoftmaxAttention, linear(), linear(FAVOR))),
        (PermuteFormer, linear()),  # encodes features, which stay positive
    ],
)
def test_attentions_are_distributions_over_keys(position, attention):
    model = small(position, attention)
    found = model.attentions(IDS)
    assert found.shape == (2, 2, 3, 9, 9)
    assert found.min() >= 0
    torch.testing.assert_close(found.sum(-1), torch.ones(2, 2, 3, 9), atol=1e-4, rtol=0)
    assert torch.equal(model.attentions(IDS, layers=[1])[0], found[1])
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, 4] = False
    assert model.attentions(IDS, key_mask=mask)[:, 1, :, 5:, 4].abs().max() == 0


def test_under_encoded_features_they_are_none():
    """They are still the weights of the values, but with signs, and rows have other sums."""
    model = small(partial(RoPE, site="feature"), linear())
    seen = []
    for layer in model.layers:
        layer.attention.register_forward_hook(lambda _, args, out: seen.append((args[2], out[0])))
    model(IDS)
    found = model.attentions(IDS)
    for matrix, (v, out) in zip(found, seen, strict=False):
        torch.testing.assert_close(torch.einsum("bhnm,bmhv->bnhv", matrix, v), out)
    assert (found.sum(-1) - 1).abs().max() > 0.01
    assert "not always distributions" in model.attentions.__doc__


REMI_TOKENS = REMI(max_bars=9)


def music(**settings):
    """A model that reads musical time, and bars with its copy head."""
    return small(
        partial(RoPE, coordinates=["index", "time"]),
        vocab_size=len(REMI_TOKENS.vocabulary),
        match_classes=match_classes(REMI_TOKENS),
        copy={"coordinate": "bar", "max_lag": 4},
        **settings,
    )


def test_coordinates_are_computed_from_ids():
    rows, _ = random_walk(REMI_TOKENS, 3, 40, seed=1)
    ids = torch.from_numpy(np.asarray(rows))
    coordinates = Coordinates(REMI_TOKENS)
    model = music(coordinates=coordinates.of)
    positions = torch.stack(
        [torch.from_numpy(coordinates.of(row, model.coordinate_names)) for row in ids.numpy()]
    )
    assert positions[..., 1:].max() > 0
    expected = model(ids, positions=positions)
    torch.testing.assert_close(model(ids), expected)
    logits, state = model.forward_with_state(ids)
    torch.testing.assert_close(logits, expected)
    message = "reads 3 coordinates of each position, index, time, bar, but none were given"
    with pytest.raises(UserError, match=message):
        model.forward_with_state(ids[:, :1], state=state)
    with pytest.raises(UserError, match="but positions have 1"):
        music()(ids, positions=positions[..., :1])
    with pytest.raises(UserError, match=r"but none were given, .* pass positions"):
        music()(ids)
