"""Which noise of the positional encoding a call without a key has."""

from functools import partial

import pytest
import torch

from musicgen.attention import FAVOR, LinearAttention, redraw_features
from musicgen.position import ConvSPE, SineSPE
from musicgen.random import NoiseKey
from tests.models.builders import random_tokens, small

ENCODINGS = [
    partial(SineSPE, num_realizations=8),
    partial(ConvSPE, num_realizations=8, filter_length=5),
]
IDS = random_tokens(2, 140)  # more than a block of convSPE's noise


@pytest.mark.parametrize("position", ENCODINGS)
def test_each_call_in_train_mode_has_noise_of_its_own(position):
    model = small(position).train()
    torch.manual_seed(3)
    first, second = model(IDS), model(IDS)
    assert not torch.allclose(first, second)
    torch.manual_seed(3)
    assert torch.equal(model(IDS), first)
    state = torch.get_rng_state()
    key = NoiseKey((4,))
    assert torch.equal(model(IDS, noise=key), model(IDS, noise=key))
    assert torch.equal(torch.get_rng_state(), state)  # with a key it draws nothing


@pytest.mark.parametrize("position", ENCODINGS)
def test_in_evaluation_mode_the_noise_is_that_of_a_fixed_key(position):
    model = small(position)
    torch.manual_seed(3)
    assert torch.equal(model(IDS), model(IDS, noise=NoiseKey((0,))))


@pytest.mark.parametrize(("train", "key"), [(True, None), (False, None), (False, NoiseKey((7,)))])
@pytest.mark.parametrize("position", ENCODINGS)
def test_parts_of_a_sequence_have_the_same_noise(position, train, key):
    model = small(position).train(train)
    torch.manual_seed(3)
    with torch.no_grad():
        whole, _ = model.forward_with_state(IDS, noise=key)
        torch.manual_seed(3)
        logits, state = model.forward_with_state(IDS[:, :60], noise=key)
        parts = [logits]
        for part in IDS[:, 60:].split(50, dim=1):
            logits, state = model.forward_with_state(part, state=state.select(torch.arange(2)))
            parts.append(logits)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-5, rtol=1e-4)


def test_features_are_redrawn_by_one_call():
    attention = partial(LinearAttention, feature_map=FAVOR)
    model = small(attention=attention)

    def drawn(key=None):
        redraw_features(model, key)
        return [layer.attention.feature_map.omega.clone() for layer in model.layers]

    first, second, other = drawn(), drawn(), drawn(NoiseKey((1,)))
    assert all(not torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(*first)  # each layer has its own
    assert all(map(torch.equal, drawn(NoiseKey((1,))), other))
    torch.manual_seed(3)
    third = drawn()
    torch.manual_seed(3)
    assert all(map(torch.equal, drawn(), third))
