"""Choose a model's `lag_bias`, so that bars return after each lag as often as in real pieces.

A copy head has learned which lags are likely, but the filters of sampling favour what is likely,
and what has returned once makes further returns likely.
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
LEAST_RATE = 0.01  # rarer returns hardly count

FloatArray = NDArray[np.float64]


def choose_lag_bias(model: MusicModel, scores: Iterable[Score], temperature: float) -> list[float]:
    """Return nats for each lag from 0 on, by which copies of the bars there are to be likelier.

    Continuations are sampled in rounds, of other pieces and with another seed each, at first with
    the usual bias. Round k = 0, 1, … adds log (r / g) / (k + 2) to the bias of each lag, where r
    and g are the `return_rates` of real and of generated pieces: stochastic approximation (Robbins
    and Monro 1951), as one round alone tells the rates of few pieces.

    Args:
        scores: real pieces; those that are longer than twice the prompts are taken.
    """
    assert model.model.copy_head is not None
    max_lag = model.model.copy_head.max_lag
    prompts = []
    for score in scores:
        if len(score.bar_starts()) > 2 * PROMPT_BARS:
            prompts.append(model.prompt(score, prompt_bars=PROMPT_BARS))
        if len(prompts) == NUM_ROUNDS * NUM_PIECES:
            break
    num_parts = max(1, len(prompts) // NUM_PIECES)
    bias = np.array(usual_lag_bias(max_lag))
    for number in track(range(NUM_ROUNDS), "choosing a bias by lag"):
        part = prompts[number % num_parts :: num_parts]
        request = model.request(
            bars=NEW_BARS,
            temperature=temperature,
            lag_bias=bias.tolist(),
            seed=number,
            engine="eager",
        )
        made = Sampler(model.model, model.tokenizer, request).continuations(part)
        real = return_rates([prompt.piece for prompt in part], max_lag)
        generated = return_rates([each.score for each in made], max_lag)
        bias += np.log((real + LEAST_RATE) / (generated + LEAST_RATE)) / (number + 2)
    return bias.round(2).tolist()


def return_rates(scores: Sequence[Score], max_lag: int) -> FloatArray:
    """Return the share of bars that return from each lag, [max_lag + 1]; 0 at lag 0.

    A bar that is like n earlier ones counts 1 / n for each, so that the sum is the share of bars
    that return, and loops count no more than other returns. Bars after the first `PROMPT_BARS`
    count, up to `NEW_BARS`.
    """
    rates, num_bars = np.zeros(max_lag + 1), 0
    for score in scores:
        similarities = bar_similarities(bar_notes(score)[:, :3])[: PROMPT_BARS + NEW_BARS]
        for bar in range(PROMPT_BARS, len(similarities)):
            by_lag = similarities[bar, :bar][::-1][:max_lag]
            like = np.flatnonzero(by_lag >= ALIKE)
            rates[1 + like] += 1 / max(1, len(like))
            num_bars += not np.isnan(by_lag).all()
    return rates / max(1, num_bars)
