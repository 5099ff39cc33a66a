"""SPE against its expected kernels (Liutkus et al. 2021, §2, eqs. 18 and 23–25)."""

import math

import pytest
import torch

from musicgen.position import ConvSPE, SineSPE
from musicgen.random import NoiseKey

SIZES = {"num_layers": 2, "num_heads": 1, "width": 8, "model_dim": 8}


def encoded_products(spe, q, k, noise, layer=0):
    """Return √(K/R)·q̂ᵀk̂ of every pair of positions: [L, L]."""
    positions = torch.arange(q.shape[1])[None, :, None]
    codes, _ = spe(positions, noise=noise)
    q_hat, k_hat = codes[layer].encode(q, k)
    scale = math.sqrt(spe.width / spe.num_realizations)
    return scale * torch.einsum("blhr,bmhr->lm", q_hat, k_hat)


def expected_products(spe, q, k, layer=None):
    """Return Σ_d q_d k_d P_d(m − n) of every pair of positions: [L, L]."""
    length = q.shape[1]
    lags = torch.arange(length)[:, None] - torch.arange(length)
    kernel = spe.kernel(lags.flatten(), layer=layer)[0].unflatten(-1, (length, length))  # [K, L, L]
    return torch.einsum("nd,md,dnm->nm", q[0, :, 0], k[0, :, 0], kernel)


def rmse(a, b):
    return (a - b).square().mean().sqrt().item()


@torch.no_grad()
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("kind", ["sine", "conv"])
def test_error_of_the_estimate_falls_with_the_root_of_r(kind, gated):
    q, k = torch.randn(2, 1, 40, 1, 8)
    errors = []
    for realizations in (64, 1024, 16384):
        torch.manual_seed(5)
        extra = {"num_sines": 3} if kind == "sine" else {"filter_length": 20}
        cls = SineSPE if kind == "sine" else ConvSPE
        spe = cls(**SIZES, num_realizations=realizations, gated=gated, **extra)
        expected = expected_products(spe, q, k, layer=1)
        # Several draws, as one varies too much to measure the slope.
        draws = [encoded_products(spe, q, k, NoiseKey((i,)), layer=1) for i in range(4)]
        errors.append(sum(rmse(draw, expected) for draw in draws) / len(draws))
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.35)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.35)
    assert errors[2] < 0.1 * expected.std()


def test_sine_initialisation():
    torch.manual_seed(2)
    spe = SineSPE(num_layers=3, num_heads=8, width=64, model_dim=512, num_sines=5, shared=False)
    assert spe.frequency.shape == (3, 8, 64, 5)
    assert spe.frequency.mean().item() == pytest.approx(-4, abs=0.05)
    assert spe.frequency.std().item() == pytest.approx(1, abs=0.05)
    assert spe.phase.mean().item() == pytest.approx(0, abs=0.05)
    # Dividing by √‖g‖ / 2 leaves a norm of 2√‖g‖, about 2·√√5.
    norms = spe.gain.norm(dim=-1)
    assert norms.mean().item() == pytest.approx(2 * 5**0.25, rel=0.05)


@torch.no_grad()
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_products_of_the_exact_limit_equal_the_expected_kernel(gated, shared):
    sizes = {"num_layers": 3, "num_heads": 2, "width": 5, "model_dim": 10, "num_sines": 3}
    spe = SineSPE(**sizes, num_realizations=None, gated=gated, shared=shared)
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


@pytest.mark.parametrize("logit", [-90.0, -17.0, 17.0, 90.0])
@pytest.mark.parametrize("spe", [SineSPE, ConvSPE])
def test_saturated_gates_have_finite_gradients(spe, logit):
    spe = spe(**SIZES, num_realizations=8)
    spe.gate.data.fill_(logit)
    codes, _ = spe(torch.arange(6)[None, :, None], noise=NoiseKey((1,)))
    q, k = torch.randn(2, 1, 6, 1, 8)
    (codes[0].encode(q, k)[0] + codes[0].encode(q, k)[1]).square().sum().backward()
    assert all(p.grad.isfinite().all() for p in spe.parameters())


def test_gate_noise_is_drawn_per_layer_and_shared_by_q_and_k():
    spe = SineSPE(**SIZES, num_realizations=4)
    spe.gate.data.fill_(40.0)
    codes, _ = spe(torch.zeros(1, 1, 1), noise=NoiseKey((1,)))
    x = torch.randn(1, 1, 1, 8)
    first, second = (code.encode(x, x) for code in codes)
    torch.testing.assert_close(first[0], first[1])
    assert not torch.allclose(first[0], second[0])


def test_shared_codes_exist_once():
    positions = torch.arange(9)[None, :, None]
    codes, _ = ConvSPE(**SIZES, filter_length=4)(positions, noise=NoiseKey((1,)))
    assert codes[0].codes is codes[1].codes
    apart, _ = ConvSPE(**SIZES, filter_length=4, shared=False)(positions, noise=NoiseKey((1,)))
    assert not torch.equal(apart[0].codes.q, apart[1].codes.q)
