"""Choose a model's `lag_bias`, so that bars return after each lag as often as in real pieces.

A copy head has learned which lags are likely, but in sampling below temperature 1 the likely ones
come more often than that, and what has returned once makes further returns likely.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from musicgen.console import track
from musicgen.generation.form import usual_lag_bias
from musicgen.generation.model import MusicModel
from musicgen.generation.sampler import Sampler
from musicgen.metrics.bars import ALIKE, bar_notes, bar_similarities
from musicgen.midi import Score

PROMPT_BARS, NEW_BARS = 4, 44
NUM_PIECES, NUM_ROUNDS = 32, 6

FloatArray = NDArray[np.float64]


def choose_lag_bias(model: MusicModel, scores: Iterable[Score], temperature: float) -> list[float]:
    """Return nats for each lag from 0 on, by which copies of the bars there are to be likelier.

    Continuations are sampled in rounds, at first with the usual bias. Each adds half of
    log (r / g) to the bias of each lag, as what returns makes more returns likely: r and g are the
    shares of bars that are alike the bar at that lag, in real and in generated pieces. The bias of
    the round nearest to the real pieces, by Σ |r − g|, is returned.

    Args:
        scores: real pieces; the first `NUM_PIECES` that are longer than the prompts are taken.
    """
    assert model.model.copy_head is not None
    max_lag = model.model.copy_head.max_lag
    prompts, pieces = [], []
    for score in scores:
        if len(score.bar_starts()) > 2 * PROMPT_BARS:
            prompts.append(model.prompt(score, prompt_bars=PROMPT_BARS))
            pieces.append(prompts[-1].piece)
        if len(pieces) == NUM_PIECES:
            break
    real, count = return_rates(pieces, max_lag)
    least = 1 / np.maximum(count, 1)
    bias, found = np.array(usual_lag_bias(max_lag)), []
    for _ in track(range(NUM_ROUNDS), "choosing a bias by lag"):
        request = model.request(
            bars=NEW_BARS, temperature=temperature, lag_bias=bias.tolist(), engine="eager"
        )
        sampler = Sampler(model.model, model.tokenizer, request)
        generated, _ = return_rates([c.score for c in sampler.continuations(prompts)], max_lag)
        found.append((float(np.abs(real - generated).sum()), bias.round(2).tolist()))
        bias = bias + np.log((real + least) / (generated + least)) / 2
    return min(found)[1]


def return_rates(scores: Sequence[Score], max_lag: int) -> tuple[FloatArray, FloatArray]:
    """Return the share of bars that are alike the bar at each lag, and how many are compared.

    Bars after the first `PROMPT_BARS` count, up to `NEW_BARS`. [max_lag + 1] each, 0 at lag 0.
    """
    like, count = np.zeros((2, max_lag + 1))
    for score in scores:
        similarities = bar_similarities(bar_notes(score)[:, :3])[: PROMPT_BARS + NEW_BARS]
        for lag in range(1, min(max_lag + 1, len(similarities))):
            first = max(PROMPT_BARS, lag)
            pairs = similarities.diagonal(-lag)[first - lag :]
            like[lag] += (pairs >= ALIKE).sum()
            count[lag] += (~np.isnan(pairs)).sum()
    return like / np.maximum(count, 1), count
