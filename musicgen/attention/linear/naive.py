"""The causal product over all pairs of tokens: the reference for the fast implementations."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from musicgen.attention.linear.state import LinearState, ProductInputs, normaliser, segments

Backend = Callable[[ProductInputs], tuple[Tensor, LinearState]]


def naive(inputs: ProductInputs) -> tuple[Tensor, LinearState]:
    """Compute all pairs of tokens at once: quadratic, the oracle of the fast ones."""
    q, k, v, norm, log_decay, state, rescale_points, eps = inputs
    norm_q, norm_k = norm or (q, k)
    batch, length, heads, width = q.shape
    rate = q.new_zeros(heads) if log_decay is None else log_decay
    if state is None:
        kv = q.new_zeros(batch, heads, width, v.shape[-1])
        state = LinearState(kv, q.new_zeros(batch, heads, norm_k.shape[-1]))
    # Rescale points up to each token, each of which contains the decay of one token.
    points = torch.zeros(length, device=q.device, dtype=torch.long)
    points[list(rescale_points)] = 1
    points = points.cumsum(0)

    def decay_of(distance: Tensor, contained: Tensor) -> Tensor:
        """Return γ^distance without what the factors contain, but with its gradient."""
        per_head = rate[:, None, None]
        left = per_head * (distance - contained).clamp(min=0)
        return (left + (per_head - per_head.detach()) * contained).exp()  # [H, ·, ·]

    outputs = []
    for part in segments(length, rescale_points):
        if part.start in rescale_points:
            factor = rescale_points[part.start]
            k, norm_k = (
                torch.cat((x[:, : part.start] * factor[:, None], x[:, part.start :]), dim=1)
                for x in (k, norm_k)
            )
            state = state.scaled(factor)
        n = torch.arange(part.start, part.stop, device=q.device)
        m = torch.arange(part.stop, device=q.device)
        distance = n[:, None] - m
        decay = decay_of(distance, points[n][:, None] - points[m]) * (distance >= 0)  # [H, N, M]
        state_decay = decay_of(n[:, None] + 1, points[n][:, None]).transpose(0, 1)  # [N, H, 1]
        weights, norm_weights = (
            torch.einsum("bnhe,bmhe->bhnm", x[:, part], y[:, : part.stop]) * decay
            for x, y in ((q, k), (norm_q, norm_k))
        )
        numerator = torch.einsum("bhnm,bmhv->bnhv", weights, v[:, : part.stop])
        numerator = numerator + torch.einsum("bnhe,bhev->bnhv", q[:, part] * state_decay, state.kv)
        denominator = norm_weights.sum(-1).transpose(1, 2)
        denominator = denominator + torch.einsum(
            "bnhe,bhe->bnh", norm_q[:, part] * state_decay, state.k
        )
        outputs.append(numerator / normaliser(denominator, eps)[..., None])
    # Sums decayed to the last token.
    distance = torch.arange(length - 1, -1, -1, device=q.device)[:, None]
    decay = decay_of(distance, points[-1] - points[:, None]).transpose(0, 1)  # [L, H, 1]
    last = torch.full_like(distance[:1], length)
    state = state.scaled(decay_of(last, points[-1:, None])[:, 0])
    kv = state.kv + torch.einsum("blhe,blhv->bhev", k * decay, v)
    return torch.cat(outputs, dim=1), LinearState(kv, state.k + (norm_k * decay).sum(1))
