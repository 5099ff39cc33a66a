"""The parameters of SPE, its gates, and what its layers share (Liutkus et al. 2021, §2)."""

import pytest
import torch

from musicgen.position import ConvSPE, SineSPE
from musicgen.random import NoiseKey

SIZES = {"num_layers": 2, "num_heads": 1, "width": 8, "model_dim": 8}


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
