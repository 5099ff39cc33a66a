"""Run a model for a measure; the measures themselves see arrays."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from musicgen.models import Transformer
from musicgen.position import NoiseKey


@torch.inference_mode()
def position_losses(
    model: Transformer,
    tokens: NDArray[np.int64],
    *,
    positions: NDArray[np.int64] | None = None,
    seed: int = 0,
) -> NDArray[np.float64]:
    """Cross-entropy in nats of each token given those before it, in one parallel pass.

    Args:
        model: causal, in evaluation mode.
        tokens: a piece, [L + 1].
        positions: [L + 1, P], where the model reads more than the index.
        seed: of the positional encoding's noise.

    Returns:
        [L]: entry n is the loss of token n + 1.
    """
    ids = torch.from_numpy(tokens).to(next(model.parameters()).device)
    located = None if positions is None else torch.from_numpy(positions[None, :-1]).to(ids.device)
    logits = model(ids[None, :-1], positions=located, noise=NoiseKey((seed,)))[0]
    return F.cross_entropy(logits.float(), ids[1:], reduction="none").cpu().double().numpy()


def usable_length(model: Transformer, wanted: int) -> int:
    """The tokens a model can be run over: fewer than wanted only where its positions end."""
    limit = model.position.max_length
    return wanted if limit is None else min(wanted, limit)
