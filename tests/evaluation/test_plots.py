"""How bright an attention weight is shown; names in plots; plots that fail."""

import numpy as np

from musicgen.evaluation.attention_properties import attention_brightness
from musicgen.evaluation.position_loss import plot_loss_curves

CURVE = {"position": [1, 2], "loss": [3.0, 2.0], "low": [2.5, 1.0], "high": [3.5, 3.0]}


def test_brightness():
    shown = attention_brightness(np.array([0, 0.02 / 2**2.5, 0.02, 0.7]))
    np.testing.assert_allclose(shown, [0, 0.5, 1, 1])


def test_dollars_in_names_are_no_formula(tmp_path):
    for name in (r"a $5 or \frac $6", "$x$", "a"):
        path = tmp_path / f"{len(name)}.svg"
        plot_loss_curves([{"run": name, **CURVE}], path, training_length=256)
    plain, dollars = ((tmp_path / f"{n}.svg").read_text().count("<use") for n in (1, 3))
    assert dollars == plain + 2  # a glyph for each letter


def test_a_plot_that_fails_is_a_warning(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *_, **__: int("no number"))
    (tmp_path / "a.png").touch()
    plot_loss_curves([{"run": "a", **CURVE}], tmp_path / "a.png", training_length=256)
    assert "a.png: not drawn: invalid literal" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
