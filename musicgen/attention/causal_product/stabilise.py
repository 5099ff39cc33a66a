"""From logarithms of features to features in a range where nothing overflows or vanishes.

With one scale s_f a feature, keys exp(a_f − s_f) and queries exp(u_f + s_f − max_f (u_f + s_f))
give the same attention: s cancels in each product, and the maximum between numerator and
normaliser. With s_f near the logarithm of the (decayed) sum of key feature f, that sum is near 1,
and so the normaliser is not far below 1 either: the query's largest feature is 1.

So s follows the running maximum of each key feature, but lazily: fp32 has room for e^±87, and s
moves, at a break, only when some feature leaves the range s ± `TOLERANCE`. Mostly the first key's
exponents serve for a whole sequence. s at a token depends on no later one.

An encoding of features mixes them. Then all of a head have one scale (`per_head`), that of the
largest, which goes through any linear map; features smaller than it by e^87 vanish.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from musicgen.attention.causal_product.state import Breaks, LinearState

TOLERANCE = 30.0
_BLOCK = 64


class Stabilised(NamedTuple):
    """Features in range, and the sums before them on the same scale."""

    q: Tensor
    k: Tensor
    breaks: Breaks
    log_scale: Tensor  # [B, H, E|1]: of the sums after these tokens; −inf where none was seen


def stabilise(
    q: Tensor,
    k: Tensor,
    key_mask: Tensor | None,
    log_decay: Tensor | None,
    state: LinearState | None,
    per_head: bool,
) -> Stabilised:
    """Features of the causal form, from their logarithms [B, L, H, E]."""
    with torch.no_grad():
        lowest = None if log_decay is None else _sizes(k, per_head).amin(1)
    if key_mask is not None:
        k = k.masked_fill(~key_mask[:, :, None, None], -torch.inf)
    with torch.no_grad():
        sizes = _sizes(k, per_head)
        first = sizes[:, 0]
        if key_mask is not None:
            rows = torch.arange(len(k), device=k.device)
            first = sizes[rows, key_mask.int().argmax(1)]
        if state is not None:
            assert state.log_scale is not None, "a state of plain features"
            first = torch.where(state.log_scale.isinf(), first, state.log_scale)
        unseen = first.isinf()
        first = first.masked_fill(unseen, 0)
        level = first
        if state is not None and log_decay is not None:  # the sums may have faded below their scale
            seen = _sizes(state.k, per_head)
            level = torch.where(seen > 0, first + seen.log(), first)
        scales = _scales(sizes, first, level, lowest, log_decay)
        breaks, before = {}, first
        for n, scale in scales.items():
            if scale is not before:
                breaks[n] = (before - scale).exp()
            before = scale
        shift = torch.stack(list(scales.values()), dim=1)  # [B, S, H, E|1]
        if len(scales) > 1:
            stretches = torch.tensor([*scales, k.shape[1]], device=k.device).diff()
            shift = shift.repeat_interleave(stretches, dim=1)  # [B, L, H, E|1]
    last = before.masked_fill(unseen, -torch.inf)
    return Stabilised(_query_features(q + shift), (k - shift).exp_(), breaks, last)


def stabilise_all(
    q: Tensor, k: Tensor, key_mask: Tensor | None, per_head: bool
) -> tuple[Tensor, Tensor]:
    """Features of the bidirectional form: one scale, the largest over all keys."""
    if key_mask is not None:
        k = k.masked_fill(~key_mask[:, :, None, None], -torch.inf)
    scale = _sizes(k.detach(), per_head).amax(1, keepdim=True)
    scale = scale.masked_fill(scale.isinf(), 0)  # rows without a key
    return _query_features(q + scale), (k - scale).exp_()


def stabilise_step(
    q: Tensor, k: Tensor, log_decay: Tensor | None, log_scale: Tensor, per_head: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features of one token [B, H, E], the factor on the sums before it, and their new scale."""
    if log_decay is not None:
        log_scale = log_scale + log_decay[:, None]
    scale = torch.maximum(log_scale, _sizes(k, per_head))
    return _query_features(q + scale), (k - scale).exp(), (log_scale - scale).exp(), scale


def _sizes(k: Tensor, per_head: bool) -> Tensor:
    """What the scales follow: [.., E|1]."""
    return k.amax(-1, keepdim=True) if per_head else k


def _query_features(q: Tensor) -> Tensor:
    """In place on a fresh tensor: one array less of the largest size."""
    return q.sub_(q.detach().amax(-1, keepdim=True)).exp_()


def _scales(
    k: Tensor, first: Tensor, level: Tensor, lowest: Tensor | None, log_decay: Tensor | None
) -> dict[int, Tensor]:
    """Token at which a scale begins -> the scale [B, H, E|1], from `first` on.

    level: logarithms of the sums before the first token.
    """
    fits = (k.amax(1) - first).amax() <= TOLERANCE
    if lowest is not None:  # old sums fade: then each token's own features keep them in range
        fits = fits & ((lowest - first).amin() >= -TOLERANCE)
    if fits:
        return {0: first}
    rate = k.new_zeros(k.shape[2], 1) if log_decay is None else log_decay[:, None]
    # Within a block the sums fade by less than half the tolerance.
    block = max(1, min(_BLOCK, int(TOLERANCE / 2 / max(float(-rate.amin()), 1e-9))))
    found = {0: first}
    scale, n, leaves = first, 0, False
    while n < k.shape[1]:
        ahead = torch.maximum(level, k[:, n])  # the next token counts itself
        if leaves or (ahead - scale).amin() < -TOLERANCE / 2:
            found[n] = scale = level = ahead
        keys = k[:, n : n + block]
        over = ((keys - scale[:, None]).amax((0, 2, 3)) > TOLERANCE).nonzero()
        leaves = len(over) > 0
        count = int(over[0]) if leaves else keys.shape[1]
        if count:
            level = torch.maximum(level + rate * count, keys[:, :count].amax(1))
            n += count
    return found
