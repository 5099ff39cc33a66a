"""Contracts of a prefix state, in which to begin, under every positional encoding with linear attention."""

import pytest
import torch

from musicgen.adapters import PrefixState
from musicgen.attention.linear.initial import InitialState
from musicgen.models import Transformer
from tests.contracts.pairs import (
    NOISE,
    PAIRS,
    TRAINING_LENGTH,
    build,
    changed,
    decode,
    padded,
    tokens,
)

LINEAR = [pair for pair in PAIRS if pair.attention != "softmax"]


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
    out = torch.cat((first, decode(prefixed, ids[:, 23:], state)), dim=1)
    torch.testing.assert_close(out, parallel, atol=1e-4, rtol=0)
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
