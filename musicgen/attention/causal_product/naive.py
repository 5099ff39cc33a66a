"""The quadratic form, for reading and as the oracle of the fast ones."""

from __future__ import annotations

import torch
from torch import Tensor

from musicgen.attention.causal_product.state import Breaks, LinearState, Norm, normaliser, spans


def naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    norm: Norm | None,
    log_decay: Tensor | None,
    state: LinearState | None,
    breaks: Breaks,
    eps: float,
) -> tuple[Tensor, LinearState]:
    """All pairs of tokens at once. Arguments as those of `causal_linear_attention`."""
    norm_q, norm_k = norm or (q, k)
    batch, length, heads, width = q.shape
    rate = q.new_zeros(heads) if log_decay is None else log_decay
    if state is None:
        kv = q.new_zeros(batch, heads, width, v.shape[-1])
        state = LinearState(kv, q.new_zeros(batch, heads, norm_k.shape[-1]))
    outputs = []
    for part in spans(length, breaks):
        if part.start in breaks:
            factor = breaks[part.start]
            k, norm_k = (
                torch.cat((x[:, : part.start] * factor[:, None], x[:, part.start :]), dim=1)
                for x in (k, norm_k)
            )
            state = state.scaled(factor)
        n = torch.arange(part.start, part.stop, device=q.device)
        distance = n[:, None] - torch.arange(part.stop, device=q.device)
        decay = (rate[:, None, None] * distance.clamp(min=0)).exp() * (distance >= 0)  # [H, N, M]
        since = (rate * (n + 1)[:, None]).exp()[..., None]
        weights, norm_weights = (
            torch.einsum("bnhe,bmhe->bhnm", x[:, part], y[:, : part.stop]) * decay
            for x, y in ((q, k), (norm_q, norm_k))
        )
        numerator = torch.einsum("bhnm,bmhv->bnhv", weights, v[:, : part.stop])
        numerator = numerator + torch.einsum("bnhe,bhev->bnhv", q[:, part] * since, state.kv)
        denominator = norm_weights.sum(-1).transpose(1, 2)
        denominator = denominator + torch.einsum("bnhe,bhe->bnh", norm_q[:, part] * since, state.k)
        outputs.append(numerator / normaliser(denominator, eps)[..., None])
    # The sums as the last token sees them.
    behind = torch.arange(length - 1, -1, -1, device=q.device)
    until = (rate * behind[:, None]).exp()[..., None]
    state = state.scaled((rate * length).exp()[:, None])
    kv = state.kv + torch.einsum("blhe,blhv->bhev", k * until, v)
    return torch.cat(outputs, dim=1), LinearState(kv, state.k + (norm_k * until).sum(1))
