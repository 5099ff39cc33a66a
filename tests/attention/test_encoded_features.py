"""Encodings of features against the quadratic form: encoded numerators, and their normaliser."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from musicgen.attention import causal_linear_attention
from musicgen.attention.linear import bidirectional_linear_attention, linear_attention_step
from musicgen.position import (
    LayerCode,
    OrthogonalLRPE,
    PermutationLRPE,
    PermuteFormer,
    RoPE,
    UnitaryLRPE,
)
from tests.attention.inputs import BATCH, DECAY, HEADS, VALUES, WIDTH, random_mask

SIZES = {"num_layers": 1, "num_heads": HEADS, "width": WIDTH, "model_dim": 30}
ENCODINGS = {
    "rope": RoPE,
    "unitary": UnitaryLRPE,
    "orthogonal": OrthogonalLRPE,
    "permutation": PermutationLRPE,
    "permute": PermuteFormer,
    "unitary, LRPE's normaliser": partial(UnitaryLRPE, normaliser="encoded"),
    "permute, RoFormer's normaliser": partial(PermuteFormer, normaliser="unencoded"),
}


def code_at(name: str, positions: Tensor, dtype=torch.float64) -> LayerCode:
    torch.manual_seed(3)
    return ENCODINGS[name](**SIZES).to(dtype)(positions[None, :, None])[0][0]


def inputs(length: int, log_features: bool, dtype=torch.float64) -> list[Tensor]:
    """Positive features, or logarithms that rise out of fp32's range and have a jump."""
    q, k = torch.randn(2, BATCH, length, HEADS, WIDTH, dtype=torch.float64)
    if log_features:
        k = k + 2.5 * torch.arange(length)[:, None, None]
        k[:, length // 2 :, 1] -= 90
    else:
        q, k = q.square() + 0.1, k.square() + 0.1
    v = torch.randn(BATCH, length, HEADS, VALUES, dtype=torch.float64)
    return [x.to(dtype).requires_grad_() for x in (q, k, v)]


def oracle(q, k, v, code, log_features, decay=None, mask=None, causal=True) -> Tensor:
    """All pairs: numerators of encoded features; normaliser of those that are positive."""
    if log_features:
        q, k = q.exp(), k.exp()
    encoded = code.encode(q, k)
    norm = encoded if code.encodes_normaliser else (q, k)
    n = torch.arange(q.shape[1])
    weight = torch.ones(len(n), len(n), dtype=torch.float64)
    if causal:
        decay = torch.zeros(HEADS) if decay is None else decay
        weight = (decay[:, None, None] * (n[:, None] - n)).exp().tril()
    if mask is not None:
        weight = weight * mask[:, None, None]
    pairs, positive = (torch.einsum("bnhe,bmhe->bhnm", *x) * weight for x in (encoded, norm))
    return torch.einsum("bhnm,bmhv->bnhv", pairs / positive.sum(-1, keepdim=True), v)


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("log_features", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("causal", "decaying"), [(True, False), (True, True), (False, False)])
def test_outputs_and_gradients_are_those_of_all_pairs(name, log_features, masked, causal, decaying):
    length = 90
    code = code_at(name, torch.arange(length))
    q, k, v = inputs(length, log_features)
    decay = DECAY.clone().requires_grad_() if decaying else None
    mask = random_mask(length) if masked else None
    wanted = (q, k, v, decay) if decaying else (q, k, v)
    weights = torch.randn_like(v)
    options = {"log_features": log_features, "code": code, "key_mask": mask, "eps": 0}
    if causal:
        out, _ = causal_linear_attention(q, k, v, log_decay=decay, **options)
    else:
        out = bidirectional_linear_attention(q, k, v, **options)
    results = []
    for x in (oracle(q, k, v, code, log_features, decay, mask, causal), out):
        results.append((x, *torch.autograd.grad((x * weights).sum(), wanted)))
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-8, rtol=1e-8)


@torch.no_grad()
@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("decay", [None, DECAY])
def test_single_precision_is_enough_for_exponents_beyond_its_range(name, decay):
    length = 200
    q, k, v = inputs(length, True, torch.float32)
    assert k.max() > 300
    code = code_at(name, torch.arange(length))
    out, _ = causal_linear_attention(q, k, v, log_features=True, log_decay=decay, code=code)
    expected = oracle(*(x.double() for x in (q, k, v)), code, True, decay)
    torch.testing.assert_close(out.double(), expected, atol=1e-3, rtol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("log_features", [False, True])
def test_normalisers_that_vanish_or_are_negative(log_features):
    """LRPE's normaliser (eq. 38) of two tokens half a turn apart, the first key x times as large."""
    rope = OrthogonalLRPE(1, 1, 2, 2, basis="identity", normaliser="encoded")
    rope.log_alpha.fill_(math.log(math.pi))
    v = torch.tensor([1.0, 5.0])[None, :, None, None]
    q = torch.full((1, 2, 1, 2), 0.5)
    # The second query weighs the first key by −x and its own by 1: they add up to 1 − x.
    for x in (3.0, 0.5, 1.0):
        expected = None if x == 1 else (-x * 1 + 5) / (1 - x)
        k = torch.tensor([x, 1.0])[None, :, None, None].repeat(1, 1, 1, 2)
        phi_q, phi_k = (q.log(), k.log()) if log_features else (q, k)
        options = {"log_features": log_features, "code": rope(torch.arange(2)[None, :, None])[0][0]}
        whole, _ = causal_linear_attention(phi_q, phi_k, v, **options)
        codes = [rope(torch.tensor([[[n]]]))[0][0] for n in (0, 1)]
        _, state = causal_linear_attention(
            phi_q[:, :1], phi_k[:, :1], v[:, :1], log_features=log_features, code=codes[0],
            return_state=True
        )  # fmt: skip
        step, _ = linear_attention_step(phi_q[:, 1:], phi_k[:, 1:], v[:, 1:], state, code=codes[1])
        both = bidirectional_linear_attention(phi_q, phi_k, v, **options)
        assert whole[0, 0].item() == pytest.approx(1, rel=1e-5)
        for out in (whole[0, 1], step[0, 0], both[0, 1]):
            if expected is None:
                assert 1e5 < out.abs() < 1e9
            else:
                assert out.item() == pytest.approx(expected, rel=1e-5)
