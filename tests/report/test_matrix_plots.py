"""Pictures of matrices: what they show, where it can be computed, and that they are written."""

import numpy as np
import pytest

from musicgen.report.matrix_plots import (
    attention_brightness,
    plot_attention,
    plot_invariance,
    plot_realizations,
    plot_templates,
    relative_brightness,
)


def is_png(path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG") and len(list(path.parent.iterdir())) == 1


def test_brightness():
    shown = attention_brightness(np.array([0, 0.02 / 2**2.5, 0.02, 0.7]))
    np.testing.assert_allclose(shown, [0, 0.5, 1, 1])
    weights = np.array([[[3.0, 99], [5, 7]], [[1, 0], [1, 1]]])  # keys ahead do not count
    shown = relative_brightness(weights)
    np.testing.assert_allclose(shown[0][np.tril_indices(2)], [0, 0.5**0.4, 1])
    np.testing.assert_allclose(shown[1][np.tril_indices(2)], 0)


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (2, 3)])
def test_plot_attention(tmp_path, layers, heads):
    shown = np.random.default_rng(0).random((layers, heads, 10, 10))
    path, numbers = tmp_path / "a.png", list(range(4, 4 + layers))
    plot_attention(shown, path, layers=numbers, training_length=8, notes={(4, 0): "T 0.5"})
    assert is_png(path)


def test_plot_invariance(tmp_path):
    rows = [
        {"run": m, "R": None, "first_query": 8 * i, "last_query": 8 * i + 7, "offsets_below": o}
        | {"translation_invariance": 0.1 * i, "monotonicity": np.nan}
        for m in ("a", "b")
        for i in range(3)
        for o in (2, 8)
    ]
    plot_invariance(rows, tmp_path / "t.png")
    assert is_png(tmp_path / "t.png")


@pytest.mark.parametrize("number", [1, 40])
def test_plot_templates(tmp_path, number):
    lags = np.arange(-7, 20)
    kernels = np.stack([np.cos(d * lags) for d in range(number)])[None, None]
    plot_templates(kernels, 7, tmp_path / "k.png", length=8)
    assert is_png(tmp_path / "k.png")


def test_plot_realizations(tmp_path):
    rows = [
        {"run": run, "R in training": trained, "R in evaluation": tested, "trained": loss}
        for run, trained, tested, loss in (("a", 4, 4, 1.0), ("a", 4, "exact", 2), ("b", 8, 4, 3))
    ]
    path = tmp_path / "r.png"
    plot_realizations(rows, path)
    assert is_png(path)
