"""Choose the sampling temperature of a model: python -m musicgen.evaluation.choose_temperature RUN.

Continuations of validation pieces are compared with the music that follows in the pieces; the
temperature whose continuations are nearest is stored beside the checkpoint, where `load` reads it,
and for a model with a copy head its `lag_bias`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from musicgen import load
from musicgen.console import log, track
from musicgen.errors import UserError
from musicgen.evaluation.choose_lag_bias import choose_lag_bias
from musicgen.evaluation.training_data import open_training_data
from musicgen.generation.model import MusicModel
from musicgen.generation.prompts import Prompt, make_prompt
from musicgen.generation.sampler import Sampler
from musicgen.metrics.descriptors import pitch_class_entropy
from musicgen.metrics.key import find_scale, in_scale_share
from musicgen.metrics.style import style_similarity
from musicgen.metrics.summary import mean_of_valid
from musicgen.midi import Score

TEMPERATURES = (0.6, 0.7, 0.8, 1.0, 1.2)
PROMPT_BARS, NEW_BARS = 4, 4
NUM_PIECES, NUM_SAMPLES = 8, 2
MAX_TOKENS_PER_BAR = 256  # more than nearly all bars of grooves with many instruments

# Features of a continuation, and differences of their means that do not matter.
_FEATURES = {
    "notes in the prompt's scale": 0.02,
    "notes a bar": 0.5,
    "pitch-class entropy": 0.1,
    "rhythm like the prompt's": 0.02,
}

FloatArray = NDArray[np.float64]


class Choice(NamedTuple):
    """A temperature, and the shares of notes in the prompts' scales of its music and the real."""

    temperature: float
    in_scale: float
    in_scale_of_pieces: float


def main(arguments: Sequence[str] | None = None) -> None:
    """Choose a temperature, store it and say which."""
    parser = argparse.ArgumentParser(prog="python -m musicgen.evaluation.choose_temperature")
    parser.add_argument("run", help="a run's folder (its best), a .ckpt file, or latest")
    parser.add_argument("--root", help="folder of the training corpus, if it was moved")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(arguments)
    try:
        model = load(options.run).to(options.device)
        data = open_training_data(model, options.root)
        scores = [model.tokenizer.decode(data.cache[i]) for i in data.split("val")]
        pairs = real_continuations(model, scores)
        choice = choose_temperature(model, pairs)
        chosen: dict[str, Any] = {"temperature": choice.temperature}
        if model.model.copy_head is not None and model.model.copy_head.coordinate == "bar":
            chosen["lag_bias"] = choose_lag_bias(model, scores, choice.temperature)
        path = model.save_sampling(**chosen)
    except UserError as error:
        sys.exit(f"error: {error}")
    log(
        f"sampling temperature {choice.temperature:g}, chosen on {len(pairs)} validation pieces: "
        f"{choice.in_scale:.0%} of its notes in the prompt's scale (of the pieces' own: "
        f"{choice.in_scale_of_pieces:.0%}); in {path}"
    )


def real_continuations(model: MusicModel, scores: Iterable[Score]) -> list[tuple[Prompt, Score]]:
    """Return prompts from the beginnings of pieces, each with the bars that follow in the piece."""
    pairs = []
    for score in scores:
        try:
            prompt = make_prompt(model.tokenizer, score, "", PROMPT_BARS)
        except UserError:  # no note
            continue
        bar = prompt.end_tick * prompt.bar_length // prompt.end_time  # in ticks
        following = prompt.piece.clip(prompt.end_tick, prompt.end_tick + NEW_BARS * bar)
        if following.num_notes:
            pairs.append((prompt, following))
        if len(pairs) == NUM_PIECES:
            break
    return pairs


def choose_temperature(model: MusicModel, pairs: Sequence[tuple[Prompt, Score]]) -> Choice:
    """Return the temperature whose continuations are nearest to the real ones.

    The distance of a temperature is the mean over features of |m - r| / s: m and r are the means of
    the feature over the generated and the real continuations, s is its standard deviation over the
    real ones (at least a difference that does not matter). This compares the distributions of
    features of two sets of music, as in Yang and Lerch 2020 ("On the evaluation of generative
    models in music").

    Args:
        pairs: prompts, and the real continuations.

    Raises:
        UserError: there are none.
    """
    if not pairs:
        raise UserError(f"no validation piece has notes after its first {PROMPT_BARS} bars")
    real = np.array([_features(music, prompt) for prompt, music in pairs])
    found = []  # distance, temperature, share of notes in scale
    for temperature in track(TEMPERATURES, "choosing a temperature"):
        request = model.request(
            bars=NEW_BARS,
            max_new_tokens=NEW_BARS * MAX_TOKENS_PER_BAR,
            num_samples=NUM_SAMPLES,
            temperature=temperature,
            engine="eager",
        )
        sampler = Sampler(model.model, model.tokenizer, request)
        done = sampler.continuations([prompt for prompt, _ in pairs])
        generated = np.array([_features(c.new_score, c.prompt) for c in done])
        found.append((_distance(generated, real), temperature, _mean(generated)[0]))
    _, temperature, in_scale = min(found, key=itemgetter(0))
    return Choice(temperature, in_scale, _mean(real)[0])


def _features(music: Score, prompt: Prompt) -> tuple[float, ...]:
    """Return the values of `_FEATURES`; NaN where there is no melodic note."""
    return (
        in_scale_share(music, find_scale(prompt.score)),
        music.num_notes / NEW_BARS,
        pitch_class_entropy(music),
        style_similarity(music, prompt.score),
    )


def _mean(features: FloatArray) -> FloatArray:
    """Return the mean of each feature over the rows that have it: [N, F] -> [F]."""
    return np.apply_along_axis(mean_of_valid, 0, features)


def _distance(generated: FloatArray, real: FloatArray) -> float:
    means = _mean(real)
    deviations = np.sqrt(_mean((real - means) ** 2))
    differences = np.abs(_mean(generated) - means)
    distances = differences / np.maximum(deviations, list(_FEATURES.values()))
    # A feature that the generated music lacks altogether counts most; one of neither does not.
    distances = np.where(np.isnan(_mean(generated)), np.inf, distances)
    return float(distances[~np.isnan(means)].mean())


if __name__ == "__main__":
    main()
