"""Run a model to obtain the arrays that metrics are computed from."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from musicgen.models import Transformer
from musicgen.random import NoiseKey


@torch.inference_mode()
def position_losses(
    model: Transformer,
    tokens: NDArray[np.int64],
    noise: NoiseKey,
    *,
    positions: NDArray[np.int64] | None = None,
    num_draws: int = 1,
) -> NDArray[np.float64]:
    """Compute the cross-entropy in nats of each token given those before it, in one pass a draw.

    Args:
        model: causal, in evaluation mode.
        tokens: a piece, [L + 1]. Entry n of a draw is the loss of token n + 1.
        noise: key of the positional encoding's noise: each draw folds in its number. Random
            features are the model's own in all draws.
        positions: [L + 1, P]; None counts tokens.
        num_draws: of an encoding with noise; one without has a single one.

    Returns:
        [num_draws, L]
    """
    device = next(model.parameters()).device
    ids = torch.from_numpy(tokens).to(device)
    inputs = None if positions is None else torch.from_numpy(positions[None, :-1]).to(device)
    losses = []
    for draw in range(num_draws if model.position.relative == "expected" else 1):
        logits = model(ids[None, :-1], positions=inputs, noise=noise.fold(draw))[0]
        losses.append(F.cross_entropy(logits.float(), ids[1:], reduction="none"))
    return torch.stack(losses).cpu().double().numpy()
