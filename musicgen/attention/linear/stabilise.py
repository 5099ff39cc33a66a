"""Stabilisation of linear attention: features from their logarithms, without over- or underflow.

With one scale s_f for each feature, keys exp(a_f − s_f) and queries exp(u_f + s_f − max_f (u_f +
s_f)) give the same attention: s cancels in each product, and the maximum between numerator and
normaliser. With s_f near the logarithm of the (decayed) sum of key feature f, that sum is near 1.
The normaliser is not far below 1 either, as the largest feature of the query is 1.

So s follows the running maximum of each key feature, but lazily: fp32 has room for e^±87, and s
changes, at a rescale point, only when some feature leaves the range s ± `TOLERANCE`. Usually the
exponents of the first key serve for a whole sequence. s at a token depends on no later token.

A positional encoding of features mixes them. Then all features of a head share the scale of the
largest one (`per_head`), and features that are smaller by e^87 vanish.
"""

import torch
from torch import Tensor

from musicgen.attention.linear.state import LinearState, RescalePoints

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
) -> tuple[Tensor, Tensor, RescalePoints, Tensor]:
    """Return the features of causal attention from their logarithms.

    Args:
        q, k: logarithms of features [B, L, H, E].
        key_mask: [B, L], false where a key is left out.
        log_decay: [H] or [B, L, H].
        state: sums over the tokens before these.
        per_head: one scale for all features of a head.

    Returns:
        Features of queries and keys [B, L, H, E], the factors that bring earlier sums to the same
        scale, and the scale [B, H, E|1] of the sums after these tokens, −inf before the first key.
    """
    with torch.no_grad():
        lowest = None if log_decay is None else _exponents(k, per_head).amin(1)
    if key_mask is not None:
        k = k.masked_fill(~key_mask[:, :, None, None], -torch.inf)
    with torch.no_grad():
        exponents = _exponents(k, per_head)
        first = exponents[:, 0]
        if key_mask is not None:
            sequences = torch.arange(len(k), device=k.device)
            first = exponents[sequences, key_mask.int().argmax(1)]
        if state is not None:
            assert state.log_scale is not None, "a state of plain features"
            first = torch.where(state.log_scale.isinf(), first, state.log_scale)
        unseen = first.isinf()
        first = first.masked_fill(unseen, 0)
        log_sums = first
        if state is not None and log_decay is not None:  # sums may have decayed below their scale
            sums = _exponents(state.k, per_head)
            log_sums = torch.where(sums > 0, first + sums.log(), first)
        scales = _scales(exponents, first, log_sums, lowest, log_decay)
        rescale_points, before = {}, first
        for n, scale in scales.items():
            if scale is not before:
                decay = 0 if log_decay is None else log_decay.expand(k.shape[:3])[:, n, :, None]
                rescale_points[n] = (before - scale + decay).exp()
            before = scale
        shift = torch.stack(list(scales.values()), dim=1)  # [B, S, H, E|1]
        if len(scales) > 1:
            lengths = torch.tensor([*scales, k.shape[1]], device=k.device).diff()
            shift = shift.repeat_interleave(lengths, dim=1)  # [B, L, H, E|1]
    last = before.masked_fill(unseen, -torch.inf)
    return _query_features(q + shift), (k - shift).exp_(), rescale_points, last


def stabilise_at_once(
    q: Tensor,
    k: Tensor,
    key_mask: Tensor | None,
    state: LinearState | None,
    per_head: bool,
) -> tuple[Tensor, Tensor, LinearState | None, Tensor]:
    """Return the features of causal attention with one scale; nothing is read back from a GPU.

    The scale of a feature is its largest exponent over all keys, later ones included. It cancels,
    so that outputs depend on earlier keys only. The exception are queries whose visible keys are
    all below e^−80 of the scale: they get 0.

    Args:
        q, k, key_mask, state, per_head: as in `stabilise`.

    Returns:
        Features of queries and keys [B, L, H, E], the state on the new scale, and this scale
        [B, H, E|1], −inf before the first key.
    """
    if key_mask is not None:
        k = k.masked_fill(~key_mask[:, :, None, None], -torch.inf)
    with torch.no_grad():
        scale = _exponents(k, per_head).amax(1)
        if state is not None:
            assert state.log_scale is not None, "a state of plain features"
            scale = torch.maximum(scale, state.log_scale)
        last = scale
        if key_mask is not None:  # sequences without a key so far
            scale = scale.masked_fill(scale.isinf(), 0)
        if state is not None and state.log_scale is not None:
            factor = (state.log_scale - scale).exp()
    if state is not None:
        state = state.scaled(factor)
    shift = scale[:, None]  # [B, 1, H, E|1]
    return _query_features(q + shift), (k - shift).exp(), state, last


def stabilise_bidirectional(
    q: Tensor, k: Tensor, key_mask: Tensor | None, per_head: bool
) -> tuple[Tensor, Tensor]:
    """Return the features of bidirectional attention, [B, L, H, E].

    Each feature has one scale, its largest exponent over all keys.
    """
    if key_mask is not None:
        k = k.masked_fill(~key_mask[:, :, None, None], -torch.inf)
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
    """Return the exponents from which scales are computed: [.., E|1]."""
    return k.amax(-1, keepdim=True) if per_head else k


def _query_features(q: Tensor) -> Tensor:
    """Exponentiate in place, to save an array of the largest size; `q` must be a new tensor."""
    return q.sub_(q.detach().amax(-1, keepdim=True)).exp_()


def _scales(
    k: Tensor, first: Tensor, log_sums: Tensor, lowest: Tensor | None, log_decay: Tensor | None
) -> dict[int, Tensor]:
    """Return the scales [B, H, E|1] by the index of the token at which each begins.

    Args:
        k: exponents of the keys, [B, L, H, E|1].
        first: the scale at the first token, [B, H, E|1].
        log_sums: logarithms of the sums before the first token, [B, H, E|1].
        lowest: smallest exponents of the keys, masked ones included, [B, H, E|1]; None without
            decay.
        log_decay: [H] or [B, L, H].
    """
    fits = (k.amax(1) - first).amax() <= TOLERANCE
    if lowest is not None:  # earlier sums decay, so that each key alone must be in range
        fits = fits & ((lowest - first).amin() >= -TOLERANCE)
    if fits:
        return {0: first}
    scales, scale = {0: first}, first
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
