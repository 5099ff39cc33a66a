import math

import numpy as np
import pytest

from musicgen.metrics import KernelDrawing, kernel_properties, plot_kernels, property_rows

N = 64
LAGS = np.arange(1 - N, 2 * N)


def of(*kernels):
    """The properties of one head with the given kernels for its dimensions."""
    values = np.stack(kernels)
    return kernel_properties(LAGS, values, values.mean(0), N)


def test_a_wave():
    found = of(np.cos(2 * np.pi * LAGS / 8))
    assert found.at_zero == 1
    assert found.half_width == pytest.approx(8 / 6, abs=0.1)  # a sixth of a turn
    assert found.variation == pytest.approx(1)
    assert found.monotonicity == pytest.approx(0.5, abs=0.02)
    assert found.symmetry == pytest.approx(1)
    assert found.period == pytest.approx(8, abs=0.1)
    assert found.periodicity == pytest.approx(1, abs=0.01)
    assert found.beyond == pytest.approx(0.5)


def test_phases_are_asymmetric():
    assert of(np.sin(2 * np.pi * LAGS / 8)).symmetry == pytest.approx(0)
    for theta in (0.3, 2):
        wave = np.cos(2 * np.pi * LAGS / 8 + theta)
        assert of(wave).symmetry == pytest.approx(math.cos(theta) ** 2, abs=0.02)
        # A constant, such as a gate's, is no part of it.
        assert of(wave + 3).symmetry == pytest.approx(of(wave).symmetry)
    # Dimensions whose mean is even are not even each.
    waves = (np.cos(2 * np.pi * LAGS / 8 + theta) for theta in (1, -1))
    assert of(*waves).symmetry == pytest.approx(math.cos(1) ** 2, abs=0.02)


def test_a_triangle():
    found = of((1 - np.abs(LAGS) / 20).clip(min=0))
    assert found.half_width == pytest.approx(10)
    assert found.monotonicity == pytest.approx(1)
    assert found.symmetry == pytest.approx(1)
    assert found.periodicity < 0.05
    assert found.beyond == 0


@pytest.mark.parametrize("half_life", [2, 10, 50])
def test_a_decay_has_no_period(half_life):
    found = of(0.5 ** (np.abs(LAGS) / half_life))
    assert found.half_width == pytest.approx(half_life, abs=0.05)
    assert not found.periodicity > 0.01
    ratio = 0.25 ** (N / half_life)
    assert found.beyond == pytest.approx(ratio / (1 + ratio))


def test_a_constant_has_nothing_but_its_value():
    found = of(np.full(len(LAGS), 0.7), np.full(len(LAGS), 0.1))
    assert found.at_zero == pytest.approx(0.4)
    assert math.isinf(found.half_width)
    assert found.variation == pytest.approx(0, abs=1e-12)
    for name in ("monotonicity", "symmetry", "period", "periodicity"):
        assert math.isnan(getattr(found, name))
    nothing = of(np.zeros(len(LAGS)))
    assert math.isnan(nothing.half_width)
    assert math.isnan(nothing.beyond)


def test_a_gate_hides_position():
    wave = np.cos(2 * np.pi * LAGS / 8)
    # Variance over mean square, of δ + (1 − δ) cos.
    assert of(0.8 + 0.2 * wave).variation == pytest.approx(0.02 / (0.64 + 0.02))


def test_rising_is_not_falling():
    assert of(np.abs(LAGS) / N).monotonicity == pytest.approx(0)
    zigzag = np.where(LAGS % 3 == 0, 1.0, 0.0) - 0.5 * (LAGS % 3 == 2)  # 1, 0, −½, 1, …
    assert of(zigzag).monotonicity == pytest.approx(0.5, abs=0.02)


def test_rows_are_medians_but_for_single_heads():
    rates = np.array([[0.5, 0.1], [0.25, 0.05], [0.3, 0.001]])
    profiles = np.exp(-rates[..., None] * np.abs(LAGS))
    layers = [kernel_properties(LAGS, p[:, None], p, N) for p in profiles]
    rows = property_rows(layers)
    places = [(row["layer"], row["head"]) for row in rows]
    assert places[:4] == [("all", "all"), (0, "all"), (1, "all"), (2, "all")]
    assert places[4:] == [(layer, head) for layer in range(3) for head in range(2)]
    half = {place: row["half_width"] for place, row in zip(places, rows, strict=True)}
    assert half[1, 1] == pytest.approx(math.log(2) / 0.05, abs=0.01)
    assert half[0, "all"] == pytest.approx((half[0, 0] + half[0, 1]) / 2)
    assert math.isinf(half[2, "all"])
    known = sorted(half[place] for place in places[4:])
    assert half["all", "all"] == pytest.approx((known[2] + known[3]) / 2)
    assert [(r["layer"], r["head"]) for r in property_rows(layers[:1])] == [
        ("all", "all"),
        ("all", 0),
        ("all", 1),
    ]


@pytest.mark.parametrize(("layers", "heads", "dims"), [(1, 1, 1), (7, 2, 3)])
def test_plot(tmp_path, layers, heads, dims):
    values = np.cos(np.arange(layers * heads * dims).reshape(layers, heads, dims, 1) * LAGS)
    drawing = KernelDrawing("waves", "tokens", "mean", LAGS, values, values.mean(-2), N)
    path = tmp_path / "kernels.png"
    plot_kernels([drawing, drawing], path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
