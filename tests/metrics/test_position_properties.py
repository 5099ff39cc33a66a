import math
from types import SimpleNamespace

import numpy as np
import pytest

from musicgen.metrics.position_properties import kernel_properties

N = 64
LAGS = np.arange(1 - N, 2 * N)


def properties_of(*kernels) -> SimpleNamespace:
    """Compute the properties of one head, given the kernel of each dimension."""
    values = np.stack(kernels)
    found = kernel_properties(LAGS, values, values.mean(0), N)
    return SimpleNamespace(**{k.replace(" ", "_"): v for k, v in found.items()})


def test_sine_wave():
    found = properties_of(np.cos(2 * np.pi * LAGS / 8))
    assert found.half_width == pytest.approx(8 / 6, abs=0.1)  # a sixth of a turn
    # Pairs of 5 values in a period of 8, two of which occur once: 14 of 64 are equal.
    assert found.monotonicity == pytest.approx((1 - 14 / 64) / 2, abs=0.02)
    assert found.symmetry == pytest.approx(1)


def test_phases_reduce_symmetry():
    assert properties_of(np.sin(2 * np.pi * LAGS / 8)).symmetry == pytest.approx(0)
    for theta in (0.3, 2):
        wave = np.cos(2 * np.pi * LAGS / 8 + theta)
        assert properties_of(wave).symmetry == pytest.approx(math.cos(theta) ** 2, abs=0.02)
        # Constants, such as a gate's, have no influence.
        assert properties_of(wave + 3).symmetry == pytest.approx(properties_of(wave).symmetry)
    # The mean of two dimensions is even, each dimension is not.
    waves = (np.cos(2 * np.pi * LAGS / 8 + theta) for theta in (1, -1))
    assert properties_of(*waves).symmetry == pytest.approx(math.cos(1) ** 2, abs=0.02)


def test_triangle():
    found = properties_of((1 - np.abs(LAGS) / 20).clip(min=0))
    assert found.half_width == pytest.approx(10)
    assert found.monotonicity == 0
    assert found.symmetry == pytest.approx(1)


@pytest.mark.parametrize("half_life", [2, 10, 50])
def test_exponential_decay_halves(half_life):
    found = properties_of(0.5 ** (np.abs(LAGS) / half_life))
    assert found.half_width == pytest.approx(half_life, abs=0.05)


def test_constant_kernels_have_undefined_properties():
    found = properties_of(np.full(len(LAGS), 0.7), np.full(len(LAGS), 0.1))
    assert math.isinf(found.half_width)
    for name in ("monotonicity", "symmetry"):
        assert math.isnan(getattr(found, name))
    zero = properties_of(np.zeros(len(LAGS)))
    assert math.isnan(zero.half_width)


def test_rising_kernels_are_not_monotonic():
    assert properties_of(np.abs(LAGS) / N).monotonicity == 1
    zigzag = np.where(LAGS % 3 == 0, 1.0, 0.0) - 0.5 * (LAGS % 3 == 2)  # 1, 0, −½, 1, …
    assert properties_of(zigzag).monotonicity == pytest.approx(1 / 3, abs=0.02)
