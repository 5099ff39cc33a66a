"""Losses of a model on held-out pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from musicgen.data.preparation import EncodedCorpus
from musicgen.generation.model import MusicModel
from musicgen.random import NoiseKey, RandomStream
from musicgen.training.evaluation import position_losses


def piece_losses(
    model: MusicModel, data: EncodedCorpus, indices: Sequence[int], length: int, *, seed: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Yield the first tokens of each piece, [<= length + 1], and the loss of all but the first.

    Each piece has noise of its own, which its number among the indices and the seed decide.
    """
    for number, i in enumerate(indices):
        tokens = data.cache[i][: length + 1]
        noise = NoiseKey((seed, RandomStream.EVALUATION, number))
        positions = model.positions(tokens, data.cache.bar_lengths[i])
        (draw,) = position_losses(model.model, tokens, noise, positions=positions)
        yield tokens, draw
