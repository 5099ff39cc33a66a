"""A Transformer layer, and its state in decoding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from musicgen.attention import Attention, AttentionMask, AttentionSpan
from musicgen.models.dropout import Dropout
from musicgen.models.norm import NORMS, normalise
from musicgen.models.short_conv import ShortConvolution
from musicgen.position import LayerCode

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}
"""Of the hidden units of feed-forward networks."""


class LayerState(NamedTuple):
    """The state of a causal layer after some tokens."""

    attention: Any
    tokens: Tensor | None = None  # [B, width − 1, D], the last ones of a short convolution

    def select(self, rows: Tensor) -> LayerState:
        """Return the states of the given rows, which may repeat."""
        return LayerState(
            self.attention.select(rows), None if self.tokens is None else self.tokens[rows]
        )

    @staticmethod
    def cat(states: list[LayerState]) -> LayerState:
        """Concatenate the rows of several states."""
        attentions, tokens = zip(*states, strict=True)
        attention = type(attentions[0]).cat(list(attentions))
        return LayerState(attention, None if tokens[0] is None else torch.cat(tokens))

    def tensors(self) -> list[Tensor]:
        """Return the tensors of a state of linear attention, in which row b is sequence b."""
        return [x for x in (*self.attention, self.tokens) if x is not None]


class Layer(nn.Module):
    """Attention, then a feed-forward network, each with a residual connection and a norm."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        ff_dim: int,
        dropout: float,
        norm_first: bool,
        attention: Attention,
        span: AttentionSpan | None,
        *,
        short_conv: int | None = None,
        output_gate: bool = False,
        qk_norm: bool = False,
        attention_dim: int | None = None,
        attention_bias: bool = True,
        activation: str = "relu",
        norm: str = "layer",
    ) -> None:
        super().__init__()
        self.num_heads, self.norm_first = num_heads, norm_first
        inner = dim if attention_dim is None else attention_dim
        self.attention, self.span = attention, span
        self.short_conv = None if short_conv is None else ShortConvolution(dim, short_conv)
        self.qkv = nn.Linear(dim, 3 * inner, bias=attention_bias)
        self.q_norm, self.k_norm = (
            nn.RMSNorm(inner // num_heads) if qk_norm else None for _ in range(2)
        )
        self.token_decay = nn.Linear(dim, num_heads) if attention.decays_by_token else None
        self.output_gate = nn.Linear(dim, inner) if output_gate else None
        self.out = nn.Linear(inner, dim, bias=attention_bias)
        self.attention_norm, self.ff_norm = NORMS[norm](dim), NORMS[norm](dim)
        self.ff_in, self.ff_out = nn.Linear(dim, ff_dim), nn.Linear(ff_dim, dim)
        self.activation = ACTIVATIONS[activation]
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        code: LayerCode,
        mask: AttentionMask,
        state: LayerState | None,
        return_state: bool,
    ) -> tuple[Tensor, LayerState | None]:
        """Return the layer's output, [B, L, D] -> [B, L, D], and the state or None."""
        before, tokens = (None, None) if state is None else state
        y = normalise(self.attention_norm, x, mask.key_mask) if self.norm_first else x
        if self.short_conv is not None:
            y, tokens = self.short_conv(y, mask.key_mask, mask.causal, tokens)
        q, k, v = self.qkv(y).unflatten(-1, (3, self.num_heads, -1)).unbind(2)  # [B, L, H, K]
        if self.q_norm is not None and self.k_norm is not None:
            dtype = self.q_norm.weight.dtype  # not autocast's
            q, k = self.q_norm(q.to(dtype)), self.k_norm(k.to(dtype))
        if self.span is not None:
            mask = AttentionMask(mask.causal, mask.key_mask, self.span(positions))
        token_decay = None if self.token_decay is None else self.token_decay(y)  # [B, L, H]
        if before is not None and x.shape[1] == 1 and mask.key_mask is None:
            mixed, after = self.attention.step(q, k, v, code, mask, before, token_decay=token_decay)
        else:
            options = {"token_decay": token_decay, "state": before, "return_state": return_state}
            mixed, after = self.attention(q, k, v, code, mask, **options)
        mixed = mixed.flatten(2).to(x.dtype)
        if self.output_gate is not None:
            mixed = mixed * F.silu(self.output_gate(y))
        x = x + self.dropout(self.out(mixed))
        if self.norm_first:
            ff_input = normalise(self.ff_norm, x, mask.key_mask)
        else:
            ff_input = x = normalise(self.attention_norm, x, mask.key_mask)
        hidden = self.dropout(self.activation(self.ff_in(ff_input)))
        x = x + self.dropout(self.ff_out(hidden))
        after = LayerState(after, tokens) if return_state else None
        return x if self.norm_first else normalise(self.ff_norm, x, mask.key_mask), after
