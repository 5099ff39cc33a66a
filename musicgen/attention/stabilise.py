"""Stabilisation of linear attention: features from their logarithms, without over- or underflow.

With one scale s_f per feature, keys exp(a_f − s_f) and queries exp(u_f + s_f − max_f (u_f +
s_f)) give the same attention: s cancels in each product, and the maximum between numerator and
normaliser. With s_f near the logarithm of the (decayed) sum of key feature f, that sum is near 1.
The normaliser is not far below 1 either, as the largest feature of the query is 1.

So s follows the running maximum of each key feature, but lazily: fp32 has room for e^±87, and s
changes only when some feature leaves the range s ± `TOLERANCE`. Usually the exponents of the first
key serve for a whole sequence. s at a token depends on no later token.

A GPU would wait for each of these decisions. There, s is the largest exponent over all keys, later
ones included. It cancels, so that outputs depend on earlier keys only. The exception are queries
whose visible keys are all below e^−80 of the scale: they get 0.

A positional encoding of features mixes them. Then all features of a head share the scale of the
largest one (`per_head`), and features that are smaller by e^87 vanish.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from musicgen.attention.causal_product import LinearState
from musicgen.position.base import prefers_large_operations

TOLERANCE = 30.0
_BLOCK = 64
# Limit on the log decay of one token where scales are chosen. fp32 still resolves exponents after a
# sum over `_BLOCK` tokens.
_LARGEST_DECAY = 1e4


def stabilise(
    q: Tensor,
    k: Tensor,
    key_mask: Tensor | None,
    log_decay: Tensor | None,
    state: LinearState | None,
    per_head: bool,
) -> tuple[Tensor, Tensor, dict[int, Tensor], Tensor]:
    """Return the features of causal attention from their logarithms.

    Args:
        q, k: logarithms of features [B, L, H, E].
        key_mask: [B, L], false where a key is left out.
        log_decay: [H] or [B, L, H].
        state: sums over the tokens before these.
        per_head: one scale for all features of a head.

    Returns:
        Features of queries and keys [B, L, H, E]; their scales [B, H, E|1], by the index of the
        token at which each begins; and the scale of the sums after these tokens, −inf before the
        first key.
    """
    assert state is None or state.log_scale is not None, "a state of plain features"
    before = None if state is None else state.log_scale
    unmasked, k = k, _without_masked(k, key_mask)
    with torch.no_grad():
        exponents = _exponents(k, per_head)
        if prefers_large_operations(k.device):
            first = exponents.amax(1)
            first = first if before is None else torch.maximum(first, before)
        else:
            first = exponents[:, 0]
            if key_mask is not None:
                sequences = torch.arange(len(k), device=k.device)
                first = exponents[sequences, key_mask.int().argmax(1)]
            if before is not None:
                first = torch.where(before.isinf(), first, before)
        scale = first if key_mask is None else first.masked_fill(first.isinf(), 0)
        scales = {0: scale}
        if not prefers_large_operations(k.device):
            lowest = None if log_decay is None else _exponents(unmasked, per_head).amin(1)
            scales = _scales(exponents, scale, lowest, log_decay, state)
        last = [*scales.values()][-1]
        shift = last[:, None]  # [B, 1, H, E|1]
        if len(scales) > 1:
            lengths = torch.tensor([*scales, k.shape[1]], device=k.device).diff()
            shift = torch.stack([*scales.values()], dim=1)
            shift = shift.repeat_interleave(lengths, dim=1)  # [B, L, H, E|1]
        if key_mask is not None:  # sequences without a key so far
            last = last.masked_fill(first.isinf(), -torch.inf)
    return _query_features(q + shift), (k - shift).exp_(), scales, last


def rescaled(
    state: LinearState, scale: Tensor, log_decay: Tensor | None, length: int
) -> tuple[LinearState, Tensor | None]:
    """Return a state on another scale [B, H, E|1], and the decay of `length` tokens after it.

    The state takes over the decay of the first token. Decay and change of scale are one factor, as
    they may exceed fp32 separately: a factor e^90, a decay e^−90.
    """
    assert state.log_scale is not None
    change = state.log_scale - scale
    if log_decay is not None:
        log_decay = log_decay.expand(len(state.k), length, -1)
        change = change + log_decay[:, 0, :, None]
        log_decay = F.pad(log_decay[:, 1:], (0, 0, 1, 0))
    return state.scaled(change.exp()), log_decay


def stabilise_bidirectional(
    q: Tensor, k: Tensor, key_mask: Tensor | None, per_head: bool
) -> tuple[Tensor, Tensor]:
    """Return the features of bidirectional attention, [B, L, H, E].

    Each feature has one scale, its largest exponent over all keys.
    """
    k = _without_masked(k, key_mask)
    scale = _exponents(k.detach(), per_head).amax(1, keepdim=True)
    scale = scale.masked_fill(scale.isinf(), 0)  # sequences without a key
    return _query_features(q + scale), (k - scale).exp_()


def stabilise_step(
    q: Tensor, k: Tensor, log_decay: Tensor | None, log_scale: Tensor, per_head: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the features of one token, the factor on earlier sums, and the new scale.

    Args:
        q, k: logarithms of features [B, H, E].
        log_decay: [H] or [B, H].
        log_scale: scale of the sums before the token [B, H, E|1].
        per_head: one scale for all features of a head.

    Returns:
        Features of query and key [B, H, E], the factor and the scale [B, H, E|1].
    """
    if log_decay is not None:
        log_scale = log_scale + log_decay[..., None]
    scale = torch.maximum(log_scale, _exponents(k, per_head))
    return _query_features(q + scale), (k - scale).exp(), (log_scale - scale).exp(), scale


def _exponents(k: Tensor, per_head: bool) -> Tensor:
    """Return the exponents that determine the scales: [.., E|1]."""
    return k.amax(-1, keepdim=True) if per_head else k


def _without_masked(k: Tensor, key_mask: Tensor | None) -> Tensor:
    return k if key_mask is None else k.masked_fill(~key_mask[:, :, None, None], -torch.inf)


def _query_features(q: Tensor) -> Tensor:
    """Exponentiate in place, to save an array of the largest size; `q` must be a new tensor."""
    return q.sub_(q.detach().amax(-1, keepdim=True)).exp_()


def _scales(
    k: Tensor,
    first: Tensor,
    lowest: Tensor | None,
    log_decay: Tensor | None,
    state: LinearState | None,
) -> dict[int, Tensor]:
    """Return the scales [B, H, E|1] by the index of the token at which each begins.

    Args:
        k: exponents of the keys, [B, L, H, E|1].
        first: the scale at the first token, [B, H, E|1].
        lowest: smallest exponents of the keys, masked ones included, [B, H, E|1]; None without
            decay.
        log_decay, state: as in `stabilise`.
    """
    fits = (k.amax(1) - first).amax() <= TOLERANCE
    if lowest is not None:  # earlier sums decay, so that each key alone must be in range
        fits = fits & ((lowest - first).amin() >= -TOLERANCE)
    scales, scale = {0: first}, first
    if fits:
        return scales
    log_sums = first
    if state is not None and log_decay is not None:  # sums may have decayed below their scale
        sums = _exponents(state.k, per_head=k.shape[-1] == 1)
        log_sums = torch.where(sums > 0, first + sums.log(), first)
    for start in range(0, k.shape[1], _BLOCK):
        keys = k[:, start : start + _BLOCK]
        # Logarithms of the largest term of the sums at each token: the decays up to a token, plus
        # the running maximum of what is left without them.
        decay = keys.new_zeros(())
        if log_decay is not None:
            rates = log_decay.expand(k.shape[:3])[:, start : start + _BLOCK, :, None]
            decay = rates.clamp(min=-_LARGEST_DECAY).cumsum(1)
        sums = torch.maximum((keys - decay).cummax(1).values, log_sums[:, None]) + decay
        log_sums = sums[:, -1]
        n = 0
        while n < sums.shape[1]:
            outside = (sums[:, n:] - scale[:, None]).abs().amax((0, 2, 3)) > TOLERANCE
            if not outside.any():
                break
            n += int(outside.int().argmax())
            scales[start + n] = scale = sums[:, n]
    return scales
