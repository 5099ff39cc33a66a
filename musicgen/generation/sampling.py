"""Sampling of tokens from logits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from musicgen.errors import ParameterError, UserError
from musicgen.validation import check_bool, check_float, check_int


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn: the filters apply one after another, in the order of the attributes.

    Attributes:
        temperature: divides the logits, with a copy head its own share's; 0: the likeliest token.
        top_k: keep the k most probable tokens; None keeps all.
        top_p: keep the most probable tokens that together reach this probability (nucleus
            sampling, Holtzman et al. 2020); 1 keeps all.
        min_p: keep the tokens at least this many times as probable as the most probable one
            (Nguyen et al. 2024); 0 keeps all.
        typical_p: keep the tokens whose surprise -log p is nearest to the entropy, until they
            together reach this probability (locally typical sampling, Meister et al. 2023);
            1 keeps all. The most probable token may be left out.
        max_notes: how many notes of an instrument may sound at once, for tokenizers of several:
            one number, or one for each; None or False: any number.
        avoid_parallels: no two voices move in parallel fifths or octaves; for tokenizers of voices.
        guidance: how much more than it has learned a model heeds what it is given (`keep`): logits
            l become m + guidance (l - m), where m are those of the same model that hears what is
            given of the new bars a tritone away, where classifier-free guidance (Ho & Salimans
            2022) gives nothing. 1: as it has learned; others take up to twice the time.
        lag_bias: for models with a copy head: nats by which copies of the bars at each lag, from 0
            on, are likelier; lags beyond have 0. None: see `form.lag_bias`.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    max_notes: int | Sequence[int] | bool | None = None
    avoid_parallels: bool = False
    guidance: float = 1.0
    lag_bias: Sequence[float] | None = None

    def __post_init__(self) -> None:
        check_float("temperature", self.temperature)
        check_int("top_k", self.top_k, none_means="all tokens")
        check_float("top_p", self.top_p, above=0, maximum=1)
        check_float("min_p", self.min_p, maximum=1)
        check_float("typical_p", self.typical_p, above=0, maximum=1)
        if isinstance(self.max_notes, Sequence):
            for number in self.max_notes:
                check_int("max_notes", number)
        elif self.max_notes is not False:
            check_int("max_notes", self.max_notes, none_means="any number")
        check_bool("avoid_parallels", self.avoid_parallels)
        check_float("guidance", self.guidance)
        if self.lag_bias is not None and not isinstance(self.lag_bias, Sequence):
            raise ParameterError("lag_bias", self.lag_bias, "expected a list of numbers, or None")
        for nats in self.lag_bias or ():
            check_float("lag_bias", nats, minimum=-1000)


def probabilities(logits: Tensor, params: SamplingParams) -> Tensor:
    """Apply temperature, top-k, top-p, min-p and typical-p, in this order.

    Args:
        logits: [B, V], −∞ for tokens that may not come; at least one in each row may.
        params: temperature must not be 0.

    Returns:
        [B, V] in fp64, rows summing to 1; at least one token that may come always stays.
    """
    logits = logits.double() / params.temperature
    if params.top_k is not None and params.top_k < logits.shape[-1]:
        kth = logits.topk(params.top_k).values[..., -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    p = logits.softmax(-1)
    if params.top_p < 1:
        p = _keep_first(p, *p.sort(descending=True, stable=True), params.top_p)
    if params.min_p > 0:
        p = p * (p >= params.min_p * p.amax(-1, keepdim=True))
        p = p / p.sum(-1, keepdim=True)
    if params.typical_p < 1:
        surprise = -p.log()
        entropy = torch.special.entr(p).sum(-1, keepdim=True)
        order = (surprise - entropy).abs().argsort(stable=True)
        p = _keep_first(p, p.gather(-1, order), order, params.typical_p)
    return p


def _keep_first(p: Tensor, ordered: Tensor, order: Tensor, share: float) -> Tensor:
    """Keep the first tokens in `order` [B, V] that together reach the probability `share`."""
    # The token that crosses the share stays: compare the probability before it.
    before = ordered.cumsum(-1) - ordered
    p = torch.zeros_like(p).scatter(-1, order, ordered * (before < share))
    return p / p.sum(-1, keepdim=True)


def sample(logits: Tensor, params: SamplingParams, *, allowed: Tensor, uniform: Tensor) -> Tensor:
    """Draw a token for each row: [B, V] -> [B].

    Args:
        allowed: [B, V], true for the tokens that may come; at least one in each row.
        uniform: [B] fp64 in [0, 1): a row's token is a function of its logits and this number.
    """
    if not math.isfinite(logits.sum()):
        raise UserError(
            "the model's output is not finite: its training diverged. Take an earlier checkpoint"
        )
    logits = logits.masked_fill(~allowed, -torch.inf)
    if params.temperature == 0:
        return logits.argmax(-1)
    cumulative = probabilities(logits, params).cumsum(-1)
    # Scale by the rounded sum, so that the draw cannot pass the last possible token. Tokens of
    # probability 0 are never drawn, as their cumulative sum equals the one before.
    threshold = uniform.to(cumulative)[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, threshold, right=True)[:, 0]
