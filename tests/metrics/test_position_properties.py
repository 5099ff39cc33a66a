import math

import numpy as np
import pytest

from musicgen.metrics.position_properties import kernel_properties, property_rows

N = 64
LAGS = np.arange(1 - N, 2 * N)


def properties_of(*kernels):
    """Compute the properties of one head, given the kernel of each dimension."""
    values = np.stack(kernels)
    return kernel_properties(LAGS, values, values.mean(0), N)


def test_sine_wave():
    found = properties_of(np.cos(2 * np.pi * LAGS / 8))
    assert found.at_zero == 1
    assert found.half_width == pytest.approx(8 / 6, abs=0.1)  # a sixth of a turn
    assert found.variation == pytest.approx(1)
    # Pairs of 5 values in a period of 8, two of which occur once: 14 of 64 are equal.
    assert found.monotonicity == pytest.approx((1 - 14 / 64) / 2, abs=0.02)
    assert found.symmetry == pytest.approx(1)
    assert found.period == pytest.approx(8, abs=0.1)
    assert found.periodicity == pytest.approx(1, abs=0.01)
    assert found.beyond == pytest.approx(0.5)


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
    assert found.periodicity < 0.05
    assert found.beyond == 0


@pytest.mark.parametrize("half_life", [2, 10, 50])
def test_exponential_decay_has_no_period(half_life):
    found = properties_of(0.5 ** (np.abs(LAGS) / half_life))
    assert found.half_width == pytest.approx(half_life, abs=0.05)
    assert not found.periodicity > 0.01
    ratio = 0.25 ** (N / half_life)
    assert found.beyond == pytest.approx(ratio / (1 + ratio))


def test_constant_kernels_have_undefined_properties():
    found = properties_of(np.full(len(LAGS), 0.7), np.full(len(LAGS), 0.1))
    assert found.at_zero == pytest.approx(0.4)
    assert math.isinf(found.half_width)
    assert found.variation == pytest.approx(0, abs=1e-12)
    for name in ("monotonicity", "symmetry", "period", "periodicity"):
        assert math.isnan(getattr(found, name))
    zero = properties_of(np.zeros(len(LAGS)))
    assert math.isnan(zero.half_width)
    assert math.isnan(zero.beyond)


def test_gates_reduce_variation():
    wave = np.cos(2 * np.pi * LAGS / 8)
    # Variance over mean square, of δ + (1 − δ) cos.
    assert properties_of(0.8 + 0.2 * wave).variation == pytest.approx(0.02 / (0.64 + 0.02))


def test_rising_kernels_are_not_monotonic():
    assert properties_of(np.abs(LAGS) / N).monotonicity == 1
    zigzag = np.where(LAGS % 3 == 0, 1.0, 0.0) - 0.5 * (LAGS % 3 == 2)  # 1, 0, −½, 1, …
    assert properties_of(zigzag).monotonicity == pytest.approx(1 / 3, abs=0.02)


def test_rows_of_several_heads_are_medians():
    rates = np.array([[0.5, 0.1], [0.25, 0.05], [0.3, 0.001]])
    profiles = np.exp(-rates[..., None] * np.abs(LAGS))
    layers = [kernel_properties(LAGS, p[:, None], p, N) for p in profiles]
    rows = property_rows(layers)
    selections = [(row["layer"], row["head"]) for row in rows]
    assert selections[:4] == [("all", "all"), (0, "all"), (1, "all"), (2, "all")]
    assert selections[4:] == [(layer, head) for layer in range(3) for head in range(2)]
    half = {selection: row["half_width"] for selection, row in zip(selections, rows, strict=True)}
    assert half[1, 1] == pytest.approx(math.log(2) / 0.05, abs=0.01)
    assert half[0, "all"] == pytest.approx((half[0, 0] + half[0, 1]) / 2)
    assert math.isinf(half[2, "all"])
    medians = sorted(half[selection] for selection in selections[4:])
    assert half["all", "all"] == pytest.approx((medians[2] + medians[3]) / 2)
    assert [(r["layer"], r["head"]) for r in property_rows(layers[:1])] == [
        ("all", "all"),
        ("all", 0),
        ("all", 1),
    ]
