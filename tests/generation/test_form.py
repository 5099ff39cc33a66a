"""Forms: which bars return, bar by bar, and that decoding asks the copy head for them."""

from __future__ import annotations

import pytest
import torch

from musicgen.errors import UserError
from musicgen.generation.engines import Engine
from musicgen.generation.form import STRENGTH, form_biases
from musicgen.generation.sampling import SamplingParams
from tests.generation.test_continuation import TOKENIZERS, run, small_model

MAX_LAG = 7


def expected(form: str, section_bars: int, bar: int, lag: int) -> float:
    """The bias by its definition, for a piece that goes through the form again and again."""
    pieces = form * 9
    bar += 5 * len(form) * section_bars
    section, source = pieces[bar // section_bars], pieces[(bar - lag) // section_bars]
    if section != source:
        return -STRENGTH
    return STRENGTH if lag and lag % section_bars == 0 else 0.0


@pytest.mark.parametrize(("form", "section_bars"), [("AABA", 2), ("ABACA", 3), ("A", 1)])
def test_biases_are_their_definition(form, section_bars):
    found = form_biases(form, section_bars, MAX_LAG)
    for bar, of_bar in enumerate(found.tolist()):
        assert of_bar == [expected(form, section_bars, bar, lag) for lag in range(MAX_LAG + 1)]


def test_decoding_asks_for_the_form_in_every_bar(monkeypatch):
    model = small_model(TOKENIZERS["remi"])
    with pytest.raises(UserError, match=r"form=AB.*no copy head"):
        run(TOKENIZERS["remi"], model, form="AB")
    model.add_copy_head({"window": 64, "max_lag": MAX_LAG})
    biases, bars = form_biases("AAB", 1, MAX_LAG), []
    biases[:, 2] += 0.5
    step = Engine.step

    def checked(engine, tokens, positions, state):
        bar = positions[:, model.coordinate_names.index("bar")]
        assert torch.equal(state.copied.lag_bias, biases[bar % 3])
        bars.extend(bar.tolist())
        return step(engine, tokens, positions, state)

    monkeypatch.setattr(Engine, "step", checked)
    options = {"form": "AAB", "section_bars": 1, "sampling": SamplingParams(lag_bias=[0, 0, 0.5])}
    run(TOKENIZERS["remi"], model, bars=3, num_samples=2, **options)
    assert set(bars) >= {2, 3, 4}
