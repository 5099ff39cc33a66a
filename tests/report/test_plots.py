import numpy as np
import pytest

from musicgen.metrics import loss_curve
from musicgen.report.plots import KernelPlot, plot_kernels, plot_loss_curves

N = 64
LAGS = np.arange(1 - N, 2 * N)


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_plot_loss_curves(tmp_path, suffix, magic):
    curve = loss_curve([np.linspace(3, 1, 500)])._asdict()
    path = tmp_path / f"loss{suffix}"
    curves = [{"run": "model", "R": 4, **curve}, {"run": "trigram", "R": None, **curve}]
    plot_loss_curves(curves, path, training_length=256)
    assert path.read_bytes().startswith(magic)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(("layers", "heads", "dims"), [(1, 1, 1), (7, 2, 3)])
def test_plot_kernels(tmp_path, layers, heads, dims):
    values = np.cos(np.arange(layers * heads * dims).reshape(layers, heads, dims, 1) * LAGS)
    plot = KernelPlot("waves", "tokens", "mean", LAGS, values, values.mean(-2), N)
    path = tmp_path / "kernels.png"
    plot_kernels([plot, plot], path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
