"""Contracts of prefix states under every positional encoding with linear attention."""

import pytest
import torch

from musicgen.adapters import PrefixState
from musicgen.attention.linear.initial import InitialState
from musicgen.models import Transformer
from tests.contracts.pairs import (
    NOISE,
    PAIRS,
    TRAINING_LENGTH,
    Pair,
    build,
    changed,
    decode,
    padded,
    tokens,
)

LINEAR = [pair for pair in PAIRS if pair.attention != "softmax"]
# Whose products are not random, and whose state is sums only, those of the normaliser positive.
PLAIN = [
    p
    for p in LINEAR
    if not any(word in str(p) for word in ("_spe", "short_conv", "=encoded", "copy", "lags"))
]


@pytest.fixture(params=LINEAR, ids=str)
def prefixed(request) -> Transformer:
    model = build(request.param)
    positions = torch.arange(TRAINING_LENGTH)[None, :, None].expand(2, -1, 1)
    adapter = PrefixState(weight=10)
    adapter.attach(model)
    adapter.initialise(model, tokens(TRAINING_LENGTH), positions)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, InitialState):
                module.log_k += 0.5 * torch.randn_like(module.log_k)
                module.mean += 0.1 * torch.randn_like(module.mean)
    return model.eval()


@torch.no_grad()
def test_a_prefix_state_is_causal_recurrent_and_blind_to_padding(prefixed):
    ids = tokens(2 * TRAINING_LENGTH)
    parallel = prefixed(ids, noise=NOISE)
    first, state = prefixed.forward_with_state(ids[:, :23], noise=NOISE)
    out = torch.cat((first, decode(prefixed, ids[:, 23:45], state)), dim=1)
    torch.testing.assert_close(out, parallel[:, :45], atol=1e-4, rtol=0)
    out = decode(prefixed, ids[:, :9], None)
    torch.testing.assert_close(out, parallel[:, :9], atol=1e-4, rtol=0)
    after = prefixed(changed(ids), noise=NOISE)
    torch.testing.assert_close(after[:, :25], parallel[:, :25], atol=1e-5, rtol=0)
    longer, mask = padded(ids)
    out = prefixed(longer, key_mask=mask, noise=NOISE)[:, : ids.shape[1]]
    torch.testing.assert_close(out, parallel, atol=1e-4, rtol=0)


def test_every_part_of_a_style_has_a_gradient(prefixed):
    prefixed(tokens(TRAINING_LENGTH), noise=NOISE).square().mean().backward()
    for name, parameter in prefixed.named_parameters():
        if ".initial_state." in name:
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.abs().max() > 0, name
        else:
            assert parameter.grad is None, name


@torch.no_grad()
@pytest.mark.parametrize("pair", PLAIN, ids=str)
def test_the_state_of_a_prefix_equals_the_prefix(pair):
    model, ids = build(pair).double(), tokens(170, batch=1)
    prefix, rest = ids.split([20, 150], dim=1)
    before, after = torch.arange(170)[None, :, None].split([20, 150], dim=1)
    expected = model(ids)[:, 20:]
    adapter = PrefixState(weight=20)
    adapter.attach(model)
    adapter.initialise(model, prefix, before)
    torch.testing.assert_close(model(rest, positions=after), expected, atol=1e-8, rtol=1e-6)


def test_the_first_weights_are_a_mean_over_windows():
    model, ids = build(Pair("none", "elu")).double(), tokens(8, batch=4)
    states = [model.forward_with_state(row[None])[1].layers[0].attention for row in ids]
    adapter = PrefixState(weight=2)
    adapter.attach(model)
    adapter.initialise(model, ids, torch.arange(8)[None, :, None].expand(4, -1, 1))
    found = model.layers[0].attention.initial_state(1)
    torch.testing.assert_close(found.k, sum(s.k for s in states) / 4 / 8 * 2)
    torch.testing.assert_close(found.kv, sum(s.kv for s in states) / 4 / 8 * 2)
