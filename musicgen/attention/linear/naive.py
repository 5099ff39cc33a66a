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
        distance = n[:, None] - torch.arange(part.stop, device=q.device)
        decay = (rate[:, None, None] * distance.clamp(min=0)).exp() * (distance >= 0)  # [H, N, M]
        state_decay = (rate * (n + 1)[:, None]).exp()[..., None]
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
    distance = torch.arange(length - 1, -1, -1, device=q.device)
    decay = (rate * distance[:, None]).exp()[..., None]
    state = state.scaled((rate * length).exp()[:, None])
    kv = state.kv + torch.einsum("blhe,blhv->bhev", k * decay, v)
    return torch.cat(outputs, dim=1), LinearState(kv, state.k + (norm_k * decay).sum(1))
