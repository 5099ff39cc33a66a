"""Plots of measures: what they show, where it can be computed, and that they are written."""

import numpy as np
import pytest

from musicgen.evaluation.attention_properties import attention_brightness
from musicgen.evaluation.position_loss import plot_loss_curves
from musicgen.evaluation.position_properties import plot_kernels
from musicgen.metrics.position_loss import loss_curve
from musicgen.models.position_kernels import PositionKernel

N = 64
LAGS = np.arange(1 - N, 2 * N)


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_plot_loss_curves(tmp_path, suffix, magic):
    curve = loss_curve([np.linspace(3, 1, 500)])
    path = tmp_path / f"loss{suffix}"
    curves = [{"run": "model", "R": 4, **curve}, {"run": "trigram", "R": None, **curve}]
    plot_loss_curves(curves, path, training_length=256)
    assert path.read_bytes().startswith(magic)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(("layers", "heads", "dims"), [(1, 1, 1), (7, 2, 3)])
def test_plot_kernels(tmp_path, layers, heads, dims):
    values = np.cos(np.arange(layers * heads * dims).reshape(layers, heads, dims, 1) * LAGS)
    kernel = PositionKernel("waves", "exact", values, values.mean(-2))
    plot_kernels([(kernel, "index", LAGS, N)] * (1 if layers > 1 else 2), tmp_path / "kernels.png")
    assert is_png(tmp_path / "kernels.png")


def is_png(path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG") and len(list(path.parent.iterdir())) == 1


def test_brightness():
    shown = attention_brightness(np.array([0, 0.02 / 2**2.5, 0.02, 0.7]))
    np.testing.assert_allclose(shown, [0, 0.5, 1, 1])
