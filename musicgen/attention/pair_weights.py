"""The weights of all pairs of tokens, which attention itself never forms: for looking at them."""

import torch
from torch import Tensor

from musicgen.attention.base import Attention, AttentionMask
from musicgen.attention.linear.attention import LinearAttention
from musicgen.attention.linear.decay import by_token, pair_log_decay
from musicgen.attention.linear.product import encode_features
from musicgen.attention.softmax.pattern import AttentionPattern
from musicgen.errors import ParameterError
from musicgen.position.base import LayerCode, at_least_fp32
from musicgen.validation import check_choice

FORMS = ("features", "exponential", "normalised")


@torch.no_grad()
def pair_weights(
    attention: Attention,
    q: Tensor,
    k: Tensor,
    code: LayerCode,
    mask: AttentionMask,
    form: str = "normalised",
    *,
    token_decay: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the weight of every pair of a query and a key: quadratic in length.

    Args:
        q, k, code, mask, token_decay: as the attention's forward takes them.
        form: `normalised`, the weights that the values are averaged by. Before rows are normalised:
            `features`, φ(q)·φ(k) of linear attention, or softmax's exponential of the logit;
            `exponential`, softmax's, or the one that random features estimate: exp(q̂·k̂ /
            √R) under SPE. All contain the decay and the span; without them keys that are not seen
            have the weight 0.

    Returns:
        [B, H, L, L]: the weights of queries (rows) and keys, divided by a number of each row of
        the batch and head whose logarithm is the second result [B, H], so that none overflows.

    Raises:
        ValueError: `form` is none of these words, or `exponential` is asked for of features that
            estimate none.
    """
    check_choice("form", form, FORMS)
    if form == "normalised":  # attention is linear in the values: those of an identity show it
        length = k.shape[1]
        values = torch.eye(length, dtype=q.dtype, device=q.device)[:, None]
        values = values.repeat(len(q), 1, k.shape[2], 1)
        out, _ = attention.forward(q, k, values, code, mask, token_decay=token_decay)
        return out.permute(0, 2, 1, 3), out.new_zeros(len(q), k.shape[2])
    if isinstance(attention, LinearAttention):
        log_decay = attention.total_decay(code, mask, token_decay) if mask.causal else None
        products, logs = _linear(attention, q, k, code, log_decay, form)
        visible = _pattern(k, mask, 0).visible(slice(None), slice(None), _lags(k, mask))[:, None]
    else:
        products = q.new_ones(())
        logs, visible = _softmax(attention, q, k, code, mask)
    logs = logs.masked_fill(~visible, -torch.inf)
    log_scale = logs.amax((-2, -1))
    log_scale = log_scale.masked_fill(log_scale.isinf(), 0)  # no pair is visible
    return products * (logs - log_scale[..., None, None]).exp(), log_scale


def _linear(
    attention: LinearAttention,
    q: Tensor,
    k: Tensor,
    code: LayerCode,
    log_decay: Tensor | None,
    form: str,
) -> tuple[Tensor, Tensor]:
    """Return factors of the pairs' weights, and logarithms of factors: [B, H, L, L]."""
    feature_map = attention.feature_map
    phi_q, phi_k, feature_code = attention.features(q, k, code)
    phi_q, phi_k, _ = at_least_fp32(phi_q, phi_k, q)
    logs = phi_k.new_zeros(1, 1, 1, 1)
    if log_decay is not None:
        logs = pair_log_decay(by_token(log_decay, phi_k).transpose(1, 2)).clamp(max=0)
    encoded_q, encoded_k = (q, k) if feature_code is not None else code.encode(q, k)
    encoded_q, encoded_k, _ = at_least_fp32(encoded_q, encoded_k, q)
    if form == "exponential":
        if feature_code is not None or not feature_map.log_features:
            expected = "expected features: only FAVOR+ of encoded q and k estimates an exponential"
            raise ParameterError("form", form, expected)
        logits = _products(encoded_q, encoded_k) * attention.logit_scale
        return logits.new_ones(()), logits + logs
    if feature_map.log_features:
        scale_q, scale_k = (x.amax(-1, keepdim=True) for x in (phi_q, phi_k))
        phi_q, phi_k = (phi_q - scale_q).exp(), (phi_k - scale_k).exp()
        scale_q = scale_q + feature_map.left_out(encoded_q)
        logs = logs + _by_head(scale_q) + _by_head(scale_k).mT
    phi_q, phi_k, _ = encode_features(phi_q, phi_k, feature_code)
    return _products(phi_q, phi_k), logs.expand(len(q), q.shape[2], q.shape[1], k.shape[1])


def _softmax(
    attention: Attention, q: Tensor, k: Tensor, code: LayerCode, mask: AttentionMask
) -> tuple[Tensor, Tensor]:
    """Return the logits [B, H, L, L], and which pairs are visible [1|B, 1, L, L]."""
    logits, scale = code.logits, attention.logit_scale
    q, k, _ = at_least_fp32(*code.encode(q, k), q)
    lags = _lags(k, mask, code)
    if logits is None:
        values = _products(q, k) * scale
    else:
        values = _products(logits.term.content_query(q), k) * scale
        pattern = _pattern(k, AttentionMask(False), logits.num_columns, logits.positions)
        table = logits.table(logits.bounds(pattern.lag_bounds()))
        query = _by_head(logits.term.position_query(q, scale))
        rows = table.rows(lags).expand(len(q), q.shape[2], -1, -1)
        values = values + (query @ table.values.mT.to(query.dtype)).gather(-1, rows)
    if mask.span is not None:
        decay = mask.span.decay
        log_gauss = -(lags[..., : len(decay)].square().to(values.dtype) @ decay.to(values.dtype))
        log_gauss = log_gauss[:, None]
        values = values * log_gauss.exp() if mask.span.multiply else values + log_gauss
    visible = _pattern(k, mask, lags.shape[-1]).visible(slice(None), slice(None), lags)
    return values, visible[:, None]


def _lags(k: Tensor, mask: AttentionMask, code: LayerCode | None = None) -> Tensor:
    """Return the lags, key minus query, of the positions that are read: [1|B, L, L, P]."""
    source = mask.span or (None if code is None else code.logits)
    positions = torch.arange(k.shape[1], device=k.device)[None, :, None]
    positions = positions if source is None else source.positions
    return positions[:, None] - positions[:, :, None]


def _pattern(
    k: Tensor, mask: AttentionMask, num_dims: int, positions: Tensor | None = None
) -> AttentionPattern:
    index = torch.arange(k.shape[1], device=k.device)[None]
    positions = index[..., None] if positions is None else positions
    last = index if mask.causal else None
    return AttentionPattern(
        positions, positions, last, mask.key_mask, mask.span, num_dims, same_tokens=True
    )


def _by_head(x: Tensor) -> Tensor:
    return x.transpose(1, 2)  # [B, H, L, ·]


def _products(q: Tensor, k: Tensor) -> Tensor:
    """Compute q·k of all pairs: [B, L, H, E] -> [B, H, L, L]."""
    return _by_head(q) @ _by_head(k).mT
