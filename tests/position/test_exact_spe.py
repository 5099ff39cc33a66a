"""SineSPE in the limit of many realizations: exact products, and a finite width."""

import pytest
import torch

from musicgen.position import SineSPE
from musicgen.position.base import LayerCode
from musicgen.random import NoiseKey

SIZES = {"num_layers": 3, "num_heads": 2, "width": 5, "model_dim": 10, "num_sines": 3}


def exact(**flags) -> SineSPE:
    torch.manual_seed(1)
    return SineSPE(**SIZES, num_realizations=None, **flags)


@torch.no_grad()
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_products_equal_the_expected_kernel(gated, shared):
    spe = exact(gated=gated, shared=shared)
    length = 40
    q, k = torch.randn(2, 1, length, 2, 5)
    codes, _ = spe(torch.arange(length)[None, :, None] + 1000, noise=NoiseKey((1,)))
    lags = torch.arange(length)[:, None] - torch.arange(length)
    for layer, code in enumerate(codes):
        q_hat, k_hat = code.encode(q, k)
        assert q_hat.shape[-1] == spe.encoded_dim
        kernel = spe.kernel(lags.flatten(), layer=layer).unflatten(-1, (length, length))
        expected = torch.einsum("blhd,bmhd,hdlm->bhlm", q, k, kernel)
        products = torch.einsum("blhe,bmhe->bhlm", q_hat, k_hat)
        torch.testing.assert_close(products, expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize("length", [1, 63, 1000])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_projecting_by_blocks_equals_projecting_the_encoding(length, gated, shared):
    spe = exact(gated=gated, shared=shared)
    omega = torch.randn(spe.encoded_dim, 7)
    inputs = torch.randn(2, 3, 2, length, 2, 5).unbind(0)  # q, k of every layer
    weights = torch.randn(2, 3, 2, length, 2, 8)
    results = []
    for project in (LayerCode.project, lambda code, *args: code.project(*args)):
        q, k = (x.clone().requires_grad_() for x in inputs)
        codes, _ = spe(torch.arange(length)[None, :, None], noise=NoiseKey((4,)))
        sides = zip(*(project(c, q[i], k[i], omega) for i, c in enumerate(codes)), strict=True)
        out = torch.stack([torch.stack([torch.cat(p, dim=-1) for p in side]) for side in sides])
        grads = torch.autograd.grad((out * weights).sum(), (q, k, *spe.parameters()))
        results.append((out, *grads))
    names = ["out", "q", "k", *(name for name, _ in spe.named_parameters())]
    for name, expected, by_blocks in zip(names, *results, strict=True):
        error = (by_blocks - expected).abs().max() / expected.abs().max().clamp(min=1e-6)
        assert error < 1e-4, (name, error)


@torch.no_grad()
def test_many_realizations_approach_the_limit():
    few, many = (SineSPE(**SIZES | {"num_heads": 1}, num_realizations=r) for r in (64, 16384))
    limit = SineSPE(**SIZES | {"num_heads": 1}, num_realizations=None)
    for spe in (few, many):
        spe.load_state_dict(limit.state_dict())
    q, k = torch.randn(2, 1, 30, 1, 5)
    products = []
    for spe in (few, many, limit):
        codes, _ = spe(torch.arange(30)[None, :, None], noise=NoiseKey((2,)))
        q_hat, k_hat = codes[1].encode(q, k)
        products.append(spe.logit_scale * torch.einsum("blhe,bmhe->lm", q_hat, k_hat))
    far, near = ((p - products[2]).square().mean().sqrt() for p in products[:2])
    assert near < 0.02 * products[2].abs().max() < far
