"""Angles proportional to positions, as precise at position 1,000,000 as at 1.

A product n·f of a position and a frequency in turns counts modulo one turn, but fp32 rounds all of
it: at n = 10⁶ an error of up to 0.2 radians is left. Here f is F·2⁻³² + r with an integer F. The
product n·F modulo 2³² is what int32 arithmetic computes, exactly, on any device; n·r is below 2⁻¹³
turns up to position 10⁶, and carries the gradient of f.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

_STEPS = 2.0**32  # in one turn


def to_fp64(x: Tensor) -> Tensor:
    """Convert to fp64, on the CPU if x is on an Apple GPU, which has none."""
    device = torch.device("cpu") if x.device.type == "mps" else x.device
    return x.to(device).double()


def geometric_frequencies(even: Tensor, width: int) -> Tensor:
    """Return 10000^(−2t / width) radians for the numbers 2t, as turns per position in fp64."""
    return 10000.0 ** (-to_fp64(even) / width) / (2 * math.pi)


def angles_at(terms: Iterable[tuple[Tensor, Tensor]], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return Σ 2π·n·f modulo 2π for terms (n, f) that broadcast: within ±π for |n| up to 10⁶.

    Args:
        terms: positions n, integers below 2³¹ as a rule, and frequencies f in turns per position,
            in fp64 (see `to_fp64`).
        dtype: of the result; fp32 or fp64.
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
