"""One token from logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from musicgen.errors import UserError
from musicgen.values import number, whole


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn.

    Attributes:
        temperature: divides the logits; 0 takes the likeliest token.
        top_k: keep the k likeliest tokens; None keeps all.
        top_p: keep the likeliest tokens that together reach this probability (nucleus sampling,
            Holtzman et al. 2020); 1 keeps all.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0

    def __post_init__(self) -> None:
        number("sampling.temperature", self.temperature)
        whole("sampling.top_k", self.top_k, null="all tokens")
        number("sampling.top_p", self.top_p, above=0, at_most=1)


def probabilities(logits: Tensor, params: SamplingParams, allowed: Tensor | None = None) -> Tensor:
    """What `sample` draws from: grammar mask, temperature, top-k, top-p, in this order.

    Args:
        logits: [B, V].
        params: temperature must not be 0.
        allowed: [B, V], false where a token may not come; at least one true in each row.

    Returns:
        [B, V] in fp64, rows summing to 1; the likeliest allowed token always stays.
    """
    logits = logits.double()
    if allowed is not None:
        logits = logits.masked_fill(~allowed, -torch.inf)
    logits = logits / params.temperature
    if params.top_k is not None and params.top_k < logits.shape[-1]:
        kth = logits.topk(params.top_k).values[..., -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    p = logits.softmax(-1)
    if params.top_p < 1:
        ordered, index = p.sort(descending=True, stable=True)
        # The token that crosses top_p stays: what counts is the probability before it.
        before = ordered.cumsum(-1) - ordered
        p = torch.zeros_like(p).scatter(-1, index, ordered * (before < params.top_p))
        p = p / p.sum(-1, keepdim=True)
    return p


def sample(
    logits: Tensor,
    params: SamplingParams,
    *,
    allowed: Tensor | None = None,
    uniform: Tensor,
) -> Tensor:
    """Draw a token for each row: [B, V] -> [B].

    Args:
        logits, params, allowed: as for `probabilities`.
        uniform: [B] fp64 in [0, 1): a row's token is a function of its logits and its number.

    Raises:
        UserError: the logits are not finite.
    """
    if not logits.isfinite().all():
        raise UserError(
            "the model's output is not finite: its training diverged. Take an earlier checkpoint"
        )
    if params.temperature == 0:
        if allowed is not None:
            logits = logits.masked_fill(~allowed, -torch.inf)
        return logits.argmax(-1)
    cumulative = probabilities(logits, params, allowed).cumsum(-1)
    # Scaled by the sum that rounding left, so that the last possible token bounds the draw; tokens
    # of no probability are stepped over, since their sum does not exceed the one before.
    threshold = uniform.to(cumulative)[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, threshold, right=True)[:, 0]
