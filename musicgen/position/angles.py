"""Angles proportional to positions, as precise at position 1,000,000 as at 1.

Only the fraction of a turn matters of the product n·f of a position and a frequency in turns, but
fp32 rounds the whole product: at n = 10⁶ the error is up to 0.2 radians. Here f = F·2⁻³² + r with
an integer F. int32 arithmetic computes n·F modulo 2³² exactly on any device. n·r is below 2⁻¹³
turns up to position 10⁶; the gradient of f is computed from it.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

_STEPS = 2.0**32  # in one turn


def to_fp64(x: Tensor) -> Tensor:
    """Return x in fp64; on the CPU if x is on an Apple GPU, which does not support fp64."""
    device = torch.device("cpu") if x.device.type == "mps" else x.device
    return x.to(device).double()


def geometric_frequencies(even: Tensor, width: int) -> Tensor:
    """Return the frequencies 10000^(−2t / width) / 2π, in turns per position, in fp64.

    Args:
        even: the numbers 2t.
    """
    return 10000.0 ** (-to_fp64(even) / width) / (2 * math.pi)


def angles_at(terms: Iterable[tuple[Tensor, Tensor]], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the angles Σ 2π·n·f in radians, modulo 2π: within ±π for |n| up to 10⁶.

    Args:
        terms: pairs of positions n and frequencies f, whose shapes broadcast. Positions are
            integers below 2³¹, or floating-point numbers, which are computed in fp64. Frequencies
            are in turns per position, in fp64 (see `to_fp64`).
        dtype: dtype of the result, fp32 or fp64.
    """
    pairs = list(terms)
    device = pairs[0][0].device
    if dtype == torch.float64 or any(n.is_floating_point() for n, _ in pairs):
        turns = sum(to_fp64(n) * f for n, f in pairs)
        assert isinstance(turns, Tensor)
        return ((turns - turns.round().detach()) * (2 * math.pi)).to(device, dtype)
    steps, rests = None, []
    for n, f in pairs:
        exact = f * _STEPS
        whole = exact.detach().round()
        product = n.int() * whole.long().int().to(device)  # modulo 2³², as both casts are
        steps = product if steps is None else steps + product
        rests.append((n.float(), (exact - whole).float().to(device)))
    assert steps is not None
    angle = steps.float()
    for n, rest in rests:
        angle = angle.addcmul_(n, rest)
    return angle.mul_(2 * math.pi / _STEPS)
