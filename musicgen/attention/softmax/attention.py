"""Softmax attention."""

import torch
from torch import Tensor
from torch.nn import functional as F

from musicgen.attention.base import Attention, AttentionMask
from musicgen.attention.softmax.blockwise import blockwise_attention
from musicgen.attention.softmax.pattern import AttentionPattern
from musicgen.attention.softmax.state import SoftmaxState
from musicgen.position.base import LayerCode, Site


class SoftmaxAttention(Attention):
    """Softmax attention, softmax(logit_scale q·k) v (Vaswani et al. 2017, eq. 1).

    It is computed by torch's fused attention or, with a logit term or a span, by blocks of queries.
    """

    name = "softmax"
    accepts = frozenset({Site.EMBEDDING, Site.QUERY_KEY, Site.LOGIT})
    supports_span = True

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        code: LayerCode,
        mask: AttentionMask,
        *,
        token_decay: Tensor | None = None,
        state: SoftmaxState | None = None,
        return_state: bool = False,
        overwrite: bool = False,
    ) -> tuple[Tensor, SoftmaxState | None]:
        (causal, key_mask, span), logits = mask, code.logits
        assert state is None or key_mask is None, "a prefill has no padding"
        q, k = code.encode(q, k)
        q, k = q.to(v.dtype), k.to(v.dtype)
        # Logits depend on the lags of the first `num_dims` coordinates.
        span_dims = 0 if span is None else len(span.decay)
        num_dims = max(span_dims, 0 if logits is None else 1 + max(logits.columns))
        source = span or logits
        positions = k.new_empty(1, k.shape[1], 0) if source is None else source.positions
        k_positions = positions
        last = torch.arange(q.shape[1], device=q.device)[None]  # the last key that a query sees
        same_tokens = state is None
        if state is not None:
            state = state.append(k, v, positions, overwrite=overwrite)
            k, v, k_positions = (x[:, : state.longest] for x in state.buffers)
            last = state.length[:, None] - q.shape[1] + last  # [B, L]
        elif return_state:
            reach = None if span is None or span.window is None else span.window[0]
            state = SoftmaxState.of(k, v, positions, reach)
        if num_dims:
            last_key = last if causal else None
            pattern = AttentionPattern(
                positions, k_positions, last_key, key_mask, span, num_dims, same_tokens=same_tokens
            )
            out = blockwise_attention(q, k, v, pattern, self.logit_scale, logits)
        else:
            visible = None
            if causal and not (same_tokens and key_mask is None):
                visible = torch.arange(k.shape[1], device=q.device) <= last[..., None]
            if key_mask is not None:
                visible = key_mask[:, None] if visible is None else visible & key_mask[:, None]
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            visible = None if visible is None else visible[:, None]
            is_causal = causal and visible is None
            out = F.scaled_dot_product_attention(
                q, k, v, attn_mask=visible, is_causal=is_causal, scale=self.logit_scale
            )
        return out.transpose(1, 2), state if return_state else None
