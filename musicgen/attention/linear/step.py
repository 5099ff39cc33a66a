"""Linear attention of one token in decoding: a rank-1 update of the state."""

from __future__ import annotations

import torch
from torch import Tensor

from musicgen.attention.linear.product import encode_features, may_vanish
from musicgen.attention.linear.stabilise import stabilise_step
from musicgen.attention.linear.state import (
    LinearState,
    normaliser,
)
from musicgen.position.base import LayerCode, at_least_fp32


def linear_attention_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: LinearState,
    *,
    log_decay: Tensor | None = None,
    code: LayerCode | None = None,
    eps: float = 1e-6,
) -> tuple[Tensor, LinearState]:
    """Attend from one more token [B, 1, H, ·]: a rank-1 update of the state, constant in L.

    q and k are logarithms of features if those of the state were; `log_decay` is [H] or [B, 1, H].
    """
    with torch.autocast(q.device.type, enabled=False):
        q, k, v = (x[:, 0] for x in at_least_fp32(q, k, v))  # [B, H, ·]
        rate = None if log_decay is None else log_decay.to(q.dtype)
        if rate is not None and rate.dim() == 3:
            rate = rate[:, 0]  # [B, H]
        log_scale = state.log_scale
        if log_scale is not None:
            per_head = code is not None
            q, k, factor, log_scale = stabilise_step(q, k, rate, log_scale, per_head)
            state, eps = state.scaled(factor), eps if may_vanish(code) else 0
        elif rate is not None:
            state = state.scaled(rate.exp()[..., None])
        q, k, norm = encode_features(q[:, None], k[:, None], code)
        norm_q, norm_k = (x[:, 0] for x in norm or (q, k))
        q, k = q[:, 0], k[:, 0]
        kv = torch.addcmul(state.kv, k[..., None], v[..., None, :])
        state = LinearState(kv, state.k + norm_k, log_scale)
        numerator = (q[..., None, :] @ state.kv)[..., 0, :]  # [B, H, V]
        denominator = (norm_q * state.k).sum(-1, keepdim=True)
        return (numerator / normaliser(denominator, eps))[:, None], state
