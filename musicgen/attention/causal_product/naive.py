"""The quadratic form, for reading and as the oracle of the fast ones."""

from __future__ import annotations

import torch
from torch import Tensor

from musicgen.attention.causal_product.state import Breaks, LinearState, normaliser, spans


def naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    state: LinearState | None,
    breaks: Breaks,
    eps: float,
) -> tuple[Tensor, LinearState]:
    """All pairs of tokens at once. Arguments as those of `causal_linear_attention`."""
    batch, length, heads, width = q.shape
    rate = q.new_zeros(heads) if log_decay is None else log_decay
    if state is None:
        sums = q.new_zeros(batch, heads, width, v.shape[-1]), q.new_zeros(batch, heads, width)
        state = LinearState(*sums)
    outputs = []
    for part in spans(length, breaks):
        if part.start in breaks:
            factor = breaks[part.start]
            k = torch.cat((k[:, : part.start] * factor[:, None], k[:, part.start :]), dim=1)
            state = state.scaled(factor)
        n = torch.arange(part.start, part.stop, device=q.device)
        distance = n[:, None] - torch.arange(part.stop, device=q.device)
        decay = (rate[:, None, None] * distance.clamp(min=0)).exp()  # [H, N, M]
        weights = torch.einsum("bnhe,bmhe->bhnm", q[:, part], k[:, : part.stop])
        weights = weights * decay * (distance >= 0)
        since = q[:, part] * (rate * (n + 1)[:, None]).exp()[..., None]
        numerator = torch.einsum("bhnm,bmhv->bnhv", weights, v[:, : part.stop])
        numerator = numerator + torch.einsum("bnhe,bhev->bnhv", since, state.kv)
        denominator = weights.sum(-1).transpose(1, 2)
        denominator = denominator + torch.einsum("bnhe,bhe->bnh", since, state.k)
        outputs.append(numerator / normaliser(denominator, eps)[..., None])
    # The sums as the last token sees them.
    behind = torch.arange(length - 1, -1, -1, device=q.device)
    k = k * (rate * behind[:, None]).exp()[..., None]
    state = state.scaled((rate * length).exp()[:, None])
    kv = state.kv + torch.einsum("blhe,blhv->bhev", k, v)
    return torch.cat(outputs, dim=1), LinearState(kv, state.k + k.sum(1))
