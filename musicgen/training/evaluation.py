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
    *,
    positions: NDArray[np.int64] | None = None,
    seed: int = 0,
) -> NDArray[np.float64]:
    """Compute the cross-entropy in nats of each token given those before it, in one pass.

    Args:
        model: causal, in evaluation mode.
        tokens: a piece: [L + 1] -> [L], where entry n is the loss of token n + 1.
        positions: [L + 1, P]; None counts tokens.
        seed: of the positional encoding's noise.
    """
    device = next(model.parameters()).device
    ids = torch.from_numpy(tokens).to(device)
    inputs = None if positions is None else torch.from_numpy(positions[None, :-1]).to(device)
    logits = model(ids[None, :-1], positions=inputs, noise=NoiseKey((seed,)))[0]
    return F.cross_entropy(logits.float(), ids[1:], reduction="none").cpu().double().numpy()
