"""Softmax attention, and its key-value cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from musicgen.attention.base import Attention, AttentionMask
from musicgen.attention.blockwise import AttentionPattern, blockwise_attention
from musicgen.position.base import LayerCode, Site


@dataclass(frozen=True)
class SoftmaxState:
    """Key-value cache: keys, values and positions of the tokens so far, with room for more.

    With a span, tokens that no later token sees are dropped when the buffers are full. This assumes
    that the first coordinate never decreases.

    Attributes:
        buffers: keys [B, C, H, E], values [B, C, H, V] and positions [B, C, P], of capacity C; P is
            0 if attention does not depend on lags.
    """

    buffers: tuple[Tensor, ...]
    length: Tensor  # [B], number of cached tokens of each sequence
    longest: int  # the largest length
    reach: int | None  # the furthest visible lag of the first coordinate; None: no limit

    @property
    def k(self) -> Tensor:
        return self.buffers[0]

    def select(self, indices: Tensor) -> SoftmaxState:
        """Return the states of the sequences at these indices [N], which may repeat."""
        buffers = tuple(x[indices] for x in self.buffers)
        return SoftmaxState(buffers, self.length[indices], self.longest, self.reach)

    @staticmethod
    def cat(states: list[SoftmaxState]) -> SoftmaxState:
        """Return one state with the sequences of several states."""
        capacity = max(state.k.shape[1] for state in states)  # each is a power of two
        buffers = zip(*(state.grow(capacity).buffers for state in states), strict=True)
        length = torch.cat([state.length for state in states])
        longest = max(state.longest for state in states)
        return SoftmaxState(tuple(map(torch.cat, buffers)), length, longest, states[0].reach)

    @staticmethod
    def of(k: Tensor, v: Tensor, positions: Tensor, reach: int | None) -> SoftmaxState:
        """Return the state after keys [B, L, H, E], values [B, L, H, V], positions [1|B, L, P].

        Args:
            reach: the furthest visible lag of the first coordinate; None: no limit.
        """
        batch, length = k.shape[:2]
        lengths = torch.full((batch,), length, device=k.device)
        buffers = (k, v, positions.expand(batch, -1, -1))
        state = SoftmaxState(buffers, lengths, length, reach).trim()
        return state.grow(state.longest + 1)

    def append(
        self, k: Tensor, v: Tensor, positions: Tensor, *, overwrite: bool = False
    ) -> SoftmaxState:
        """Return the state with L more tokens at the end of each sequence.

        Args:
            k, v, positions: [B, L, H, E], [B, L, H, V] and [1|B, L, P].
            overwrite: write into these buffers, if they have room; else into copies.
        """
        batch, num_new = k.shape[:2]
        state = self if self.longest + num_new <= self.k.shape[1] else self.trim()
        state = state.grow(state.longest + num_new)
        sequences = torch.arange(batch, device=k.device)[:, None]
        slots = sequences, state.length[:, None] + torch.arange(num_new, device=k.device)
        new = (k, v, positions.expand(batch, -1, -1))
        put = Tensor.index_put_ if overwrite else Tensor.index_put
        buffers = tuple(
            put(x, slots, y.to(x.dtype)) for x, y in zip(state.buffers, new, strict=True)
        )
        return SoftmaxState(buffers, state.length + num_new, state.longest + num_new, state.reach)

    def grow(self, capacity: int) -> SoftmaxState:
        """Return the state with room for at least `capacity` tokens."""
        if capacity <= self.k.shape[1]:
            return self
        # In powers of two, so that growing is rare.
        missing = (1 << (capacity - 1).bit_length()) - self.k.shape[1]
        buffers = tuple(F.pad(x, (0, 0) * (x.dim() - 2) + (0, missing)) for x in self.buffers)
        return SoftmaxState(buffers, self.length, self.longest, self.reach)

    def trim(self) -> SoftmaxState:
        """Return the state without tokens more than `reach` before the last of their sequence."""
        if self.reach is None:
            return self
        index = torch.arange(self.longest, device=self.k.device)
        first = self.buffers[2][:, : self.longest, 0]
        bound = first.gather(1, self.length[:, None] - 1) - self.reach
        dropped = ((first < bound) & (index < self.length[:, None])).sum(1)
        length = self.length - dropped
        longest = int(length.max())
        sequences = torch.arange(len(length), device=index.device)[:, None]
        remaining = (index[:longest] + dropped[:, None]).clamp(max=self.longest - 1)
        buffers = tuple(x[sequences, remaining] for x in self.buffers)
        # Room for a quarter more at least, so that trimming is rare.
        return SoftmaxState(buffers, length, longest, self.reach).grow(longest + longest // 4 + 1)


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
