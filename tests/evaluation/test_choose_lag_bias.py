"""The choice of a bias by lag, with pieces in place of a model's."""

from __future__ import annotations

from math import exp
from types import SimpleNamespace

import numpy as np

from musicgen.evaluation import choose_lag_bias as module
from musicgen.evaluation.choose_lag_bias import choose_lag_bias, return_rates
from musicgen.generation.form import usual_lag_bias
from musicgen.midi import Score, Track, notes_from

MAX_LAG, BARS = 6, 32


def piece(share: float, seed: int, lag: int = 4) -> Score:
    """Bars of random pitches, of which a share from the fifth on are copies after `lag` bars."""
    rng = np.random.default_rng(seed)
    bars: list[list[int]] = []
    for n in range(BARS):
        copied = n >= 4 and rng.random() < share
        bars.append(bars[n - lag] if copied else rng.integers(30, 90, 4).tolist())
    pitches = [pitch for bar in bars for pitch in bar]
    rows = [(480 * i, 480, pitch, 64) for i, pitch in enumerate(pitches)]
    return Score(480, [Track("Piano", notes=notes_from(rows))])


def test_rates_by_hand():
    a, b, c = ([48, 52, 55, 60], [50, 53, 57, 62], [59, 65, 67, 71])
    pitches = [*a, *b, *a, *c, *a, *b, *c, *a]  # bars 4 to 7 count: a, b, c, a
    rows = [(480 * i, 480, pitch, 64) for i, pitch in enumerate(pitches)]
    rates = return_rates([Score(480, [Track("Piano", notes=notes_from(rows))])], 4)
    # a at bar 4 is as 2 and 4 bars ago; b as 4; c as 3; the last a as 3.
    np.testing.assert_allclose(rates, [0, 0, 0.5 / 4, 2 / 4, 1.5 / 4])


def test_bars_return_as_often_as_in_the_pieces(monkeypatch):
    shares = []

    class Sampler:
        """Of a model that copies too much after four bars."""

        def __init__(self, model, tokenizer, lag_bias):
            self.share = min(0.9, 1.2 * exp(lag_bias[4]))

        def continuations(self, prompts):
            shares.append(self.share)
            return [
                SimpleNamespace(score=piece(self.share, 100 + i)) for i, _ in enumerate(prompts)
            ]

    monkeypatch.setattr(module, "Sampler", Sampler)
    model = SimpleNamespace(
        model=SimpleNamespace(copy_head=SimpleNamespace(max_lag=MAX_LAG)),
        tokenizer=None,
        prompt=lambda score, prompt_bars: SimpleNamespace(piece=score),
        request=lambda lag_bias, **_: lag_bias,
    )
    pieces = [piece(0.2, i) for i in range(40)]
    bias = choose_lag_bias(model, [Score(), *pieces], 0.7)
    usual = usual_lag_bias(MAX_LAG)
    assert shares[0] == 1.2 * exp(usual[4]) > 0.5
    assert len(bias) == MAX_LAG + 1
    assert 0.15 < 1.2 * exp(bias[4]) < 0.25
    assert abs(bias[3] - usual[3]) < 1
