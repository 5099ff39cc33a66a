"""Angles at large positions against fp64, in which they are exact to 1e-9 there."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from musicgen.position import OrthogonalLRPE, RoPE, SineSPE, Sinusoidal, UnitaryLRPE
from musicgen.position.angles import angles_at

SIZES = {"num_layers": 1, "num_heads": 2, "width": 16, "model_dim": 32}


def geometric(width: int) -> Tensor:
    """Return 10000^(−2t/width), t < width / 2, in fp64."""
    return 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)


def of_sinusoids(n: Tensor) -> tuple[Tensor, Tensor]:
    """Vaswani et al. 2017, §3.5: PE(n, 2i) = sin(n / 10000^(2i/D)), PE(n, 2i + 1) = cos(…)."""
    angle = n.double() * geometric(64)
    expected = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)
    zeros = torch.zeros(1, len(n), 64)
    return Sinusoidal(1, 2, 32, 64).embed(zeros, n[None])[0], expected


def rotated(encoding: RoPE, positions: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate adjacent pairs of features by an encoding, and by angles [L, pairs]."""
    x = torch.randn(1, len(positions), 2, 16)
    code = encoding(positions[None])[0][0]
    rotation = torch.polar(torch.ones(()).double(), angle)
    pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)))
    expected = torch.view_as_real(pairs * rotation[:, None]).flatten(-2)
    return code.encode(x, x)[0], expected


def of_rope(n: Tensor) -> tuple[Tensor, Tensor]:
    """Su et al. 2021, eq. 15: rotations of adjacent pairs by θ_i = 10000^(−2(i − 1)/d)."""
    return rotated(RoPE(**SIZES), n, n.double() * geometric(16))


def of_rope_in_a_plane(n: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs turn by x, y, x, y, …: each coordinate has the frequencies of half the width."""
    places = torch.cat((n, n + 50), dim=1)
    angle = places[:, None].double() * geometric(8)[:, None]  # [L, frequency, coordinate]
    return rotated(RoPE(**SIZES, coordinates=2), places, angle.flatten(1))


def of_lrpe(cls):
    def both(n: Tensor) -> tuple[Tensor, Tensor]:
        encoding = cls(**SIZES, basis="identity")
        torch.nn.init.normal_(encoding.log_alpha, mean=-1)
        angle = n[:, None].double() * encoding.log_alpha[0].double().exp()
        expected = torch.stack((angle.cos(), angle.sin()))
        return torch.stack(encoding.cos_sin(n[None], 0))[:, 0], expected

    return both


def of_sine_spe(n: Tensor) -> tuple[Tensor, Tensor]:
    spe = SineSPE(**SIZES)
    f, gain = spe.frequency.double()[0].sigmoid() / 2, F.softplus(spe.gain[0].double())
    angle = 2 * math.pi * torch.einsum("lp,hkj->hljk", n.double(), f)
    gain, phase = gain.mT[:, None], spe.phase[0].double().mT[:, None]
    expected = [torch.cat((gain * x.cos(), gain * x.sin()), dim=-2) for x in (angle + phase, angle)]
    return torch.cat(spe.sines(0).omega(n[None])), torch.stack(expected)


ENCODINGS = {
    "sinusoidal": of_sinusoids,
    "rope": of_rope,
    "rope in a plane": of_rope_in_a_plane,
    "lrpe_unitary": of_lrpe(UnitaryLRPE),
    "lrpe_orthogonal": of_lrpe(OrthogonalLRPE),
    "sine_spe": of_sine_spe,
}


@torch.no_grad()
@pytest.mark.parametrize("name", ENCODINGS)
def test_errors_do_not_grow_with_the_position(name):
    errors = []
    for start in (0, 1000, 10**6, 10**8):
        torch.manual_seed(1)
        found, expected = ENCODINGS[name](start + torch.arange(100)[:, None])
        errors.append(float((found.double() - expected).abs().max() / expected.abs().max()))
    assert max(errors) < 5e-7
    assert errors[2] <= 1.5 * errors[1]  # both are rounding errors of the last bit


def test_angles_of_any_integers_and_of_fractions():
    n = torch.tensor([0, 1, -1, -(10**6), 2**24 + 1, 2**31 - 1, -(2**31)])[:, None]
    f = torch.tensor([0.5, -0.5, 1 / 3, 1e-9, -0.123456789012345, 3.25]).double()
    for positions in (n, n + 0.25):
        found = angles_at([(positions, f), (positions + 5, -2 * f)])
        turns = positions.double() * f - 2 * (positions + 5).double() * f
        expected = 2 * math.pi * (turns - turns.round())
        # Whole turns apart, and half a turn is either sign's.
        error = torch.polar(torch.ones(()).double(), found - expected) - 1
        limit = torch.tensor(1e-6) + 1e-15 * positions.abs() * f.abs()
        assert (error.abs() <= limit).all()
        assert found.abs().max() < 2 * math.pi
