"""The cross-entropy of models on pieces of a corpus, per token, note and bar."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from musicgen.console import track
from musicgen.data.preparation import EncodedCorpus
from musicgen.generation.model import MusicModel
from musicgen.metrics.position_loss import InterpolatedTrigram
from musicgen.metrics.repeated_bars import bar_similarities, new_and_repeated_bars
from musicgen.models import Transformer
from musicgen.random import NoiseKey, RandomStream
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.coordinates import Coordinates

Losses = list[NDArray[np.float64]]
"""Losses in nats of each piece: [draws, L] for one run, [seeds, draws, L] for several seeds."""

Unit = Literal["note", "bar", "token of new bars", "token of repeated bars"]
UNITS: tuple[Unit, ...] = get_args(Unit)


class Pieces(NamedTuple):
    """Pieces of a corpus, whose tokens up to a position are measured."""

    data: EncodedCorpus
    indices: Sequence[int]  # in the cache of the corpus
    length: int  # number of positions to measure


def last_position(model: MusicModel, max_factor: float) -> int:
    """Return the number of positions to measure: at most `max_factor` training lengths."""
    length = round(max_factor * model.training_length)
    return min(length, model.model.position.max_length or length)


def piece_losses(
    model: MusicModel, pieces: Pieces, *, seed: int, name: str, num_draws: int = 1
) -> Losses:
    """Return the losses of a model on pieces.

    Args:
        seed: seed of the noise of the positional encoding.
        name: title of the progress bar.
        num_draws: number of draws of this noise for each piece.
    """
    cache = pieces.data.cache
    losses: Losses = []
    for index in track(pieces.indices, name):
        tokens = cache[index][: pieces.length + 1]
        nats = position_losses(
            model.model,
            tokens,
            NoiseKey((seed, RandomStream.EVALUATION, index)),
            positions=model.positions(tokens, cache.bar_lengths[index]),
            num_draws=num_draws,
        )
        losses.append(nats)
    return losses


def trigram_losses(pieces: Pieces) -> Losses:
    """Return the losses on pieces of a trigram model that is fitted to the training pieces."""
    data = pieces.data
    training = [data.cache[index] for index in data.split("train")]
    trigram = InterpolatedTrigram(len(data.tokenizer.vocabulary), training)
    losses: Losses = []
    for index in pieces.indices:
        tokens = data.cache[index][: pieces.length + 1]
        losses.append(trigram.losses(tokens)[None, 1:])
    return losses


@torch.inference_mode()
def position_losses(
    model: Transformer,
    tokens: NDArray[np.int64],
    noise: NoiseKey,
    *,
    positions: NDArray[np.int64] | None = None,
    num_draws: int = 1,
) -> NDArray[np.float64]:
    """Return the cross-entropy in nats of each token given the tokens before it.

    Args:
        model: causal, in evaluation mode.
        tokens: a piece [L + 1].
        noise: noise key of the positional encoding; each draw folds in its number. Random features
            are not drawn again.
        positions: [L + 1, P]; None: token indices.
        num_draws: number of passes with different noise. Without noise, there is one pass.

    Returns:
        [num_draws, L], or [1, L] without noise. Entry n is the loss of token n + 1.
    """
    device = next(model.parameters()).device
    ids = torch.from_numpy(tokens).to(device)
    inputs = None if positions is None else torch.from_numpy(positions[None, :-1]).to(device)
    has_noise = model.position.relative == "expected"
    losses = []
    for draw in range(num_draws if has_noise else 1):
        logits = model(ids[None, :-1], positions=inputs, noise=noise.fold(draw))[0]
        losses.append(F.cross_entropy(logits.float(), ids[1:], reduction="none"))
    return torch.stack(losses).cpu().double().numpy()


def losses_by_unit(losses: Losses, pieces: Pieces, unit: Unit) -> tuple[Losses, list[int]]:
    """Return the losses of the tokens that belong to units, and the number of units in each piece.

    Notes are counted by `Tokenizer.num_notes`. End tokens belong to no unit. The last bar belongs
    to no unit if `pieces.length` cuts it. Repeated bars are like a bar at least `MIN_LAG` bars
    earlier, and new bars are like no earlier bar.
    """
    tokenizer, cache = pieces.data.tokenizer, pieces.data.cache
    selected, counts = [], []
    for index, nats in zip(pieces.indices, losses, strict=True):
        bar_length = cache.bar_lengths[index]
        tokens = tokenizer.until_end(cache[index][: pieces.length + 1])
        if unit != "note" and len(tokens) > pieces.length:
            tokens = _without_last_bar(tokens, tokenizer, bar_length)
        mask = np.ones(len(tokens) - 1, bool)
        if unit == "note":
            count = tokenizer.num_notes(tokens)
        elif unit == "bar":
            count = len(tokenizer.bar_starts(tokens, bar_length))
        else:
            is_new, is_repeated = _new_and_repeated_tokens(tokens, tokenizer, bar_length)
            mask = is_new if unit == "token of new bars" else is_repeated
            count = int(mask.sum())
        selected.append(nats[..., : len(mask)][..., mask])
        counts.append(count)
    return selected, counts


def _without_last_bar(
    tokens: NDArray[np.int64], tokenizer: Tokenizer, bar_length: int
) -> NDArray[np.int64]:
    """Return the tokens without the last bar; the first bar is always included."""
    bars = Coordinates(tokenizer).of(tokens, ("bar",), bar_length=bar_length)[:, 0]
    return tokens[(bars < bars.max()) | (bars == 0)]


def _new_and_repeated_tokens(
    tokens: NDArray[np.int64], tokenizer: Tokenizer, bar_length: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which tokens after the first are in new bars, and which in repeated bars: [L − 1]."""
    coordinates = Coordinates(tokenizer)
    events = coordinates.of(tokens, ("bar", "beat", "pitch"), bar_length=bar_length)
    notes = events[coordinates.values["pitch"][tokens] >= 0]
    bars = events[1:, 0]
    similarities = bar_similarities(notes, int(bars.max(initial=0)) + 1)
    is_new, is_repeated = new_and_repeated_bars(similarities)
    return is_new[bars], is_repeated[bars]
