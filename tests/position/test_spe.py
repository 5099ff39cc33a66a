"""The parameters, gates and kernels of SPE, in n dimensions and without a position."""

import math
from itertools import product

import pytest
import torch
from torch.nn import functional as F

from musicgen.position import ConvSPE, SineSPE
from musicgen.random import NoiseKey

SIZES = {"num_layers": 2, "num_heads": 2, "width": 3, "model_dim": 6}
OF_ONE_HEAD = {"num_layers": 2, "num_heads": 1, "width": 8, "model_dim": 8}
# The class token, and the positions of an image of 4 × 5.
POSITIONS = torch.cat(
    (torch.tensor([[-1, -1]]), torch.cartesian_prod(torch.arange(4), torch.arange(5)))
)
LAGS = POSITIONS[1:, None] - POSITIONS[None, 1:]  # [20, 20, 2]


def sine(**settings) -> SineSPE:
    torch.manual_seed(1)
    return SineSPE(**SIZES, **{"num_sines": 3, "coordinates": 2} | settings)


def conv(**settings) -> ConvSPE:
    torch.manual_seed(1)
    return ConvSPE(**SIZES, **{"filter_length": 4} | settings)


def products(spe, q, k, layer: int, draws: int = 1) -> torch.Tensor:
    """Return the mean over draws of q̂·k̂, scaled as in attention but for K^-½: [H, L, L]."""
    total = 0.0
    for draw in range(draws):
        codes, _ = spe(POSITIONS[None, -q.shape[1] :], noise=NoiseKey((draw,)))
        q_hat, k_hat = codes[layer].encode(q, k)
        total = total + torch.einsum("blhe,bmhe->hlm", q_hat, k_hat)
    return total * (spe.logit_scale * spe.width**0.5 / draws)


def expected(spe, q, k, layer: int, own: torch.Tensor | None) -> torch.Tensor:
    """Return Σ_d q_d k_d P_d(x − y), [H, L, L], with the class token's row and column `own`."""
    lags = LAGS[..., : spe.num_dims].flatten(0, 1)
    kernel = spe.kernel(lags, layer=layer).unflatten(-1, LAGS.shape[:2])
    if own is not None:
        kernel = torch.cat((own[1][..., 1:, None], kernel), dim=-1)
        kernel = torch.cat((own[0][..., None, :], kernel), dim=-2)  # [H, K, L, L]
    return torch.einsum("lhd,mhd,hdlm->hlm", q[0], k[0], kernel)


def own_products(spe, layer: int) -> torch.Tensor | None:
    """Return the expected kernel between the class token and all tokens: [2, H, K, L]."""
    if not spe.class_token:
        return None
    if spe.gate is not None:
        return spe.gate[layer].sigmoid()[None, :, :, None].expand(2, -1, -1, len(POSITIONS))
    code = layer % spe.num_codes
    kernels = []
    for side in ("k", "q"):  # the class token's queries meet keys, and its keys queries
        f, phase, gain = spe.sines(code)[:3]
        w = spe.class_code[code].mT  # [H, K, 2K']
        angle = 2 * math.pi * torch.einsum("phkj,lp->lhkj", f.float(), POSITIONS.float())
        angle = angle + phase if side == "q" else angle
        omega = torch.cat((gain * angle.cos(), gain * angle.sin()), dim=-1)
        other = (omega * w).sum(-1).permute(1, 2, 0) / w.shape[-1]
        itself = w.square().sum(-1) / w.shape[-1]
        kernels.append(torch.cat((itself[..., None], other[..., 1:]), dim=-1))
    return torch.stack(kernels)


@torch.no_grad()
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_products_of_the_exact_limit_equal_the_kernel(gated, shared):
    spe = sine(num_realizations=None, gated=gated, shared=shared, class_token=True)
    without = sine(num_realizations=None, gated=gated, shared=shared)
    assert spe.encoded_dim == without.encoded_dim
    q, k = torch.randn(2, 1, len(POSITIONS), 2, 3)
    for layer in range(2):
        right = expected(spe, q, k, layer, own_products(spe, layer))
        torch.testing.assert_close(products(spe, q, k, layer), right, atol=1e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("build", [sine, conv])
def test_mean_over_draws_approaches_the_kernel(build, gated):
    class_token = gated or build is sine
    spe = build(num_realizations=512, gated=gated, class_token=class_token)
    q, k = torch.randn(2, 1, 20 + class_token, 2, 3)
    right = expected(spe, q, k, 1, own_products(spe, 1))
    errors = [(products(spe, q, k, 1, draws) - right).square().mean().sqrt() for draws in (1, 16)]
    assert errors[1] < 0.08 * right.square().mean().sqrt()
    assert errors[0] > 2 * errors[1]


@torch.no_grad()
@pytest.mark.parametrize(("dims", "lags"), [(1, [-7, 0, 4]), (2, [[0, 0], [3, -7], [-1, 4]])])
def test_sine_kernel_equals_the_papers_formula(dims, lags):
    spe = sine(gated=False, coordinates=dims)
    a = spe.frequency[0]
    f = a.sigmoid()[None] / 2 if dims == 1 else ((a - 6).sigmoid() - (-a - 6).sigmoid()) / 2
    assert f.abs().max() < 0.5
    assert bool(f.min() < 0) == (dims == 2)
    for lag in torch.tensor(lags):
        angle = 2 * math.pi * torch.einsum("phkj,p->hkj", f, lag.view(dims).float())
        by_hand = (F.softplus(spe.gain[0]) ** 2 * (angle + spe.phase[0]).cos()).sum(-1) / 6
        torch.testing.assert_close(spe.kernel(lag[None])[..., 0], by_hand)


@torch.no_grad()
def test_conv_kernel_equals_the_sum_over_pairs_of_taps():
    spe = conv(gated=False)
    by_hand = torch.zeros(2, 3, 11)
    for p, shifted in product(range(4), repeat=2):
        by_hand[..., shifted - p + 5] += spe.filter_q[0, ..., p] * spe.filter_k[0, ..., shifted]
    lags = torch.arange(-5, 6)
    kernel = spe.kernel(lags)
    torch.testing.assert_close(kernel, by_hand, atol=1e-6, rtol=1e-5)
    assert kernel[..., lags.abs() > 3].abs().max() == 0


def test_frequencies_are_initialised_as_in_one_dimension_with_random_signs():
    torch.manual_seed(2)
    sizes = {"num_layers": 1, "num_heads": 8, "width": 64, "model_dim": 512}
    line = SineSPE(**sizes)
    plane = SineSPE(**sizes, coordinates=2)
    f = plane.sines(0).frequency
    assert f.shape == (2, 8, 64, 5)
    assert (f > 0).float().mean((1, 2, 3)).sub(0.5).abs().max() < 0.05
    quantiles = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    torch.testing.assert_close(
        f.abs().quantile(quantiles),
        line.sines(0).frequency.quantile(quantiles),
        rtol=0.1,
        atol=3e-4,
    )


@torch.no_grad()
def test_conv_kernel_is_initialised_as_a_triangle():
    # E[Φ_q] E[Φ_k] = (½)² / (P/2), and P − |τ| taps overlap: ½ at lag 0, 0 from lag P on.
    torch.manual_seed(4)
    lags = torch.tensor([-40, -32, -16, 0, 8, 16, 31, 32])
    sizes = {"num_layers": 1, "num_heads": 8, "width": 64, "model_dim": 512}
    mean = ConvSPE(**sizes, filter_length=32, gated=False).kernel(lags).mean((0, 1))
    expected = 0.5 * (1 - lags.abs() / 32).clamp(min=0)
    torch.testing.assert_close(mean, expected, atol=0.01, rtol=0)
    assert (mean[expected == 0] == 0).all()


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


@pytest.mark.parametrize("logit", [-90.0, -17.0, 17.0, 90.0])
@pytest.mark.parametrize("spe", [SineSPE, ConvSPE])
def test_saturated_gates_have_finite_gradients(spe, logit):
    spe = spe(**OF_ONE_HEAD, num_realizations=8)
    spe.gate.data.fill_(logit)
    codes, _ = spe(torch.arange(6)[None, :, None], noise=NoiseKey((1,)))
    q, k = torch.randn(2, 1, 6, 1, 8)
    (codes[0].encode(q, k)[0] + codes[0].encode(q, k)[1]).square().sum().backward()
    assert all(p.grad.isfinite().all() for p in spe.parameters())


def test_gate_noise_is_drawn_per_layer_and_shared_by_q_and_k():
    spe = SineSPE(**OF_ONE_HEAD, num_realizations=4)
    spe.gate.data.fill_(40.0)
    codes, _ = spe(torch.zeros(1, 1, 1), noise=NoiseKey((1,)))
    x = torch.randn(1, 1, 1, 8)
    first, second = (code.encode(x, x) for code in codes)
    torch.testing.assert_close(first[0], first[1])
    assert not torch.allclose(first[0], second[0])
