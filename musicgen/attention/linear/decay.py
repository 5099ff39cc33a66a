"""Decay between pairs of tokens: by head, or by token and head.

A log decay is [H], the same at all tokens, or [B, L, H]: that of each token on all earlier ones.
The pair (n, m) is weighted by the exponential of the sum over the tokens after m up to n.
"""

from typing import NamedTuple

import torch
from torch import Tensor


def precise(x: Tensor) -> torch.dtype:
    """Return the dtype for sums that cancel: fp64, which Apple's GPUs do not have."""
    return torch.float32 if x.device.type == "mps" else torch.float64


class DecayFactors(NamedTuple):
    """Decay between a chunk of T tokens and the tokens around it, at most 1.

    At a rescale point, whose factor contains the first token's decay, those from before have none
    of it.
    """

    from_start: Tensor  # [B·H, T, 1]: from the chunk before to token n
    to_end: Tensor  # [B·H, T, 1]: from token m to the chunk's end
    total: Tensor  # [B·H, 1, 1]: from the chunk before to this chunk's end


def chunk_decay(log_decay: Tensor, rescaled: bool) -> tuple[Tensor, DecayFactors]:
    """Return the weights of a chunk's pairs, 0 where m > n, and the decay around the chunk.

    Args:
        log_decay: [B·H, T].
        rescaled: the chunk begins at a rescale point.
    """
    sums = log_decay.to(precise(log_decay)).cumsum(-1)
    within = (sums[:, :, None] - sums[:, None, :]).to(log_decay.dtype)
    within = within.exp_().tril_()  # [B·H, T, T]
    # All but the first token's decay, and that one where it is not contained.
    from_start = within[..., :1]
    if not rescaled:
        from_start = from_start * log_decay[:, :1, None].exp()
    return within, DecayFactors(from_start, within[:, -1, :, None], from_start[:, -1:])
