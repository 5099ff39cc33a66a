"""Sampling of tokens from logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from musicgen.errors import UserError
from musicgen.validation import check_float, check_int


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn.

    Attributes:
        temperature: divides the logits; 0 takes the most probable token.
        top_k: keep the k most probable tokens; None keeps all.
        top_p: keep the most probable tokens that together reach this probability (nucleus
            sampling, Holtzman et al. 2020); 1 keeps all.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0

    def __post_init__(self) -> None:
        check_float("temperature", self.temperature)
        check_int("top_k", self.top_k, none_means="all tokens")
        check_float("top_p", self.top_p, above=0, maximum=1)


def probabilities(logits: Tensor, params: SamplingParams, allowed: Tensor | None = None) -> Tensor:
    """Apply grammar mask, temperature, top-k and top-p, in this order.

    Args:
        logits: [B, V].
        params: temperature must not be 0.
        allowed: [B, V], true for the tokens that may come; at least one in each row.

    Returns:
        [B, V] in fp64, rows summing to 1; the most probable allowed token always stays.
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
        # The token that crosses top_p stays: compare the probability before it.
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
        uniform: [B] fp64 in [0, 1): a row's token is a function of its logits and this number.
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
    # Scale by the rounded sum, so that the draw cannot pass the last possible token. Tokens of
    # probability 0 are never drawn, as their cumulative sum equals the one before.
    threshold = uniform.to(cumulative)[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, threshold, right=True)[:, 0]
