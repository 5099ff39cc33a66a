"""The choice of a trained model's sampling temperature on its validation pieces."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from musicgen.checkpoints import store_sampling
from musicgen.console import log, progress_bar
from musicgen.data.loading import MusicDataModule
from musicgen.errors import ParameterError, UserError
from musicgen.evaluation.training_data import evenly_spaced
from musicgen.generation.model import MusicModel, load
from musicgen.generation.prompts import Prompt, make_prompt
from musicgen.generation.sampler import Sampler
from musicgen.metrics.key import find_scale, in_scale_share, pitch_class_entropy
from musicgen.midi import Score
from musicgen.tokenization import Groove2Groove

TEMPERATURES = (0.6, 0.7, 0.8, 1.0, 1.2)
PROMPT_BARS, NEW_BARS = 4, 4
NUM_PIECES, NUM_SAMPLES = 8, 2
MAX_TOKENS_PER_BAR = 128  # of grooves with many instruments, about a bar
MAX_SECONDS = 60.0
MIN_STEPS = 100
"""After fewer steps `auto` does not choose: such models do not know their pieces yet."""

MAX_NOTES_SHARE = 0.999
MAX_PIECES_READ = 200

# Features of a continuation, and differences of their means that do not matter.
_FEATURES = {"notes in the prompt's scale": 0.02, "notes a bar": 0.5, "pitch-class entropy": 0.1}

FloatArray = NDArray[np.float64]


class Choice(NamedTuple):
    """A temperature, and the shares of notes in the prompts' scales of its music and the real."""

    temperature: float
    in_scale: float
    in_scale_of_pieces: float
    num_pieces: int


def check_choose(choose: Any) -> None:
    if choose not in ("auto", True, False):
        raise ParameterError("sampling.choose", choose, "expected auto, true or false")


def choose_for_run(
    checkpoints: Path, data: MusicDataModule, choose: str | bool, *, steps: int, device: str
) -> None:
    """Choose the temperature for a run's best model, and store it in the run's checkpoints.

    With `auto`, runs of fewer than `MIN_STEPS` steps keep the configured sampling; so do runs
    without validation pieces, and those where Ctrl-C, an error or the time prevents the choice.
    The notes that instruments play at once are learned in any case, see `learn_max_notes`.
    """
    pieces = data.encoded.cache.pieces("val")
    files = [path for name in ("best", "last") if (path := checkpoints / f"{name}.ckpt").is_file()]
    if not (choose and files):
        return
    learned = learn_max_notes(data)
    for file in files if learned else ():
        store_sampling(file, learned)
    if not pieces or (choose == "auto" and steps < MIN_STEPS):
        return
    try:
        model = load(files[0]).to(device)
        scores = (data.tokenizer.decode(data.encoded.cache[i]) for i in pieces)
        with progress_bar() as progress:
            temperatures = progress.track(TEMPERATURES, description="choosing a temperature")
            choice = choose_temperature(model, real_continuations(model, scores), temperatures)
        if choice is None:
            return
        for file in files:
            store_sampling(file, {**learned, "temperature": choice.temperature})
    except (KeyboardInterrupt, UserError, OSError) as error:
        reason = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)
        log(f"no sampling temperature chosen ({reason}): generate.py takes the configured one")
        return
    shares = (
        f": {choice.in_scale:.0%} of its notes in the prompt's scale (of the pieces' own: "
        f"{choice.in_scale_of_pieces:.0%})"
    )
    log(
        f"sampling temperature {choice.temperature:g}, chosen on "
        f"{choice.num_pieces} validation piece{'' if choice.num_pieces == 1 else 's'}"
        + ("" if np.isnan(choice.in_scale + choice.in_scale_of_pieces) else shares)
    )


def learn_max_notes(data: MusicDataModule) -> dict[str, list[int]]:
    """Return how many notes each instrument plays at once, as `max_notes` of `SamplingParams`.

    Models that are not trained to the end begin notes and forget to close them. The number holds
    for `MAX_NOTES_SHARE` of the notes of training pieces; nothing for tokens without instruments.
    """
    if not isinstance(data.tokenizer, Groove2Groove):
        return {}
    pieces = evenly_spaced(data.encoded.cache.pieces("train"), MAX_PIECES_READ)
    counts = [data.tokenizer.events.notes_at_once(data.encoded.cache[i]) for i in pieces]
    of_instruments = (np.concatenate(each) for each in zip(*counts, strict=True))
    # An instrument that never plays may play one note.
    most = [
        np.quantile(c, MAX_NOTES_SHARE, method="higher") if len(c) else 1 for c in of_instruments
    ]
    return {"max_notes": [int(number) for number in most]}


def real_continuations(model: MusicModel, scores: Any) -> list[tuple[Prompt, Score]]:
    """Return prompts from the beginnings of pieces, each with the bars that follow in the piece."""
    pairs = []
    for score in scores:
        try:
            prompt = make_prompt(model.tokenizer, score, "", PROMPT_BARS)
        except UserError:  # no note
            continue
        end = prompt.end_tick + NEW_BARS * _bar_ticks(prompt)
        following = prompt.piece.clip(prompt.end_tick, end)
        if following.num_notes:
            pairs.append((prompt, following))
        if len(pairs) == NUM_PIECES:
            break
    return pairs


def choose_temperature(
    model: MusicModel,
    pairs: Sequence[tuple[Prompt, Score]],
    temperatures: Iterable[float] = TEMPERATURES,
    *,
    max_seconds: float = MAX_SECONDS,
) -> Choice | None:
    """Return the temperature whose continuations are nearest to the real ones; None if it is late.

    The distance of a temperature is the mean over features of |m - r| / s: m and r are the means of
    the feature over the generated and the real continuations, s is its standard deviation over the
    real ones (at least a difference that does not matter). This compares the distributions of
    features of two sets of music, as in Yang and Lerch 2020 ("On the evaluation of generative
    models in music").

    Args:
        pairs: prompts, and the real continuations.
    """
    if not pairs:
        return None
    deadline = time.monotonic() + max_seconds
    real = np.array([_features(music, prompt) for prompt, music in pairs])
    prompts = [prompt for prompt, _ in pairs]
    found = []  # distance, temperature, share of notes in scale
    for temperature in temperatures:
        request = model.request(
            bars=NEW_BARS,
            max_new_tokens=NEW_BARS * MAX_TOKENS_PER_BAR,
            num_samples=NUM_SAMPLES,
            temperature=temperature,
            compile=False,
        )

        def check_time(num_tokens: int) -> None:
            if time.monotonic() > deadline:
                raise UserError(f"it takes more than {max_seconds:g} s")

        sampler = Sampler(model.model, model.tokenizer, request, on_step=check_time)
        done = sampler.continuations(prompts)
        generated = np.array([_features(c.new_score, c.prompt) for c in done])
        found.append((_distance(generated, real), temperature, _mean(generated)[0]))
    _, temperature, in_scale = min(found, key=itemgetter(0))
    return Choice(temperature, in_scale, _mean(real)[0], len(pairs))


def _bar_ticks(prompt: Prompt) -> int:
    return prompt.end_tick * prompt.bar_length // prompt.end_time


def _features(music: Score, prompt: Prompt) -> tuple[float, ...]:
    """Return the values of `_FEATURES`; NaN where there is no melodic note."""
    return (
        in_scale_share(music, find_scale(prompt.score)),
        music.num_notes / NEW_BARS,
        pitch_class_entropy(music),
    )


def _mean(features: FloatArray) -> FloatArray:
    """Return the mean of each feature over the rows that have it: [N, F] -> [F]."""
    valid = ~np.isnan(features)
    sums = np.where(valid, features, 0).sum(0)
    return np.where(valid.any(0), sums / np.maximum(1, valid.sum(0)), np.nan)


def _distance(generated: FloatArray, real: FloatArray) -> float:
    means = _mean(real)
    deviations = np.sqrt(_mean((real - means) ** 2))
    differences = np.abs(_mean(generated) - means)
    distances = differences / np.maximum(deviations, list(_FEATURES.values()))
    # A feature that the generated music lacks altogether counts most; one of neither does not.
    distances = np.where(np.isnan(_mean(generated)), np.inf, distances)
    return float(distances[~np.isnan(means)].mean())
