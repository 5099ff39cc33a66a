"""Softmax attention, through torch's fused kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from musicgen.attention.base import AttentionKernel
from musicgen.position.base import LayerCode, Site


@dataclass(frozen=True)
class SoftmaxState:
    """Keys [B, C, H, E] and values [B, C, H, V] so far, with room for more, and lengths [B]."""

    k: Tensor
    v: Tensor
    length: Tensor
    longest: int

    def select(self, rows: Tensor) -> SoftmaxState:
        """The states of the given rows, which may repeat."""
        return SoftmaxState(self.k[rows], self.v[rows], self.length[rows], self.longest)

    @staticmethod
    def cat(states: list[SoftmaxState]) -> SoftmaxState:
        """Rows of several states, one after the other."""
        capacity = max(state.k.shape[1] for state in states)  # a power of two, each
        states = [state.grow(capacity) for state in states]
        return SoftmaxState(
            torch.cat([state.k for state in states]),
            torch.cat([state.v for state in states]),
            torch.cat([state.length for state in states]),
            max(state.longest for state in states),
        )

    @staticmethod
    def of(k: Tensor, v: Tensor) -> SoftmaxState:
        """The state after these keys and values."""
        batch, length = k.shape[:2]
        lengths = torch.full((batch,), length, device=k.device)
        return SoftmaxState(k, v, lengths, length).grow(length + 1)

    def append(self, k: Tensor, v: Tensor) -> SoftmaxState:
        """With further keys and values [B, L, H, ·], each row's behind its own."""
        longest = self.longest + k.shape[1]
        room = self.grow(longest)
        rows = torch.arange(len(k), device=k.device)[:, None]
        places = self.length[:, None] + torch.arange(k.shape[1], device=k.device)
        return SoftmaxState(
            room.k.index_put((rows, places), k.to(room.k.dtype)),
            room.v.index_put((rows, places), v.to(room.v.dtype)),
            self.length + k.shape[1],
            longest,
        )

    def grow(self, capacity: int) -> SoftmaxState:
        """The same, with room for at least `capacity` tokens."""
        missing = capacity - self.k.shape[1]
        if missing <= 0:
            return self
        # In powers of two, so that growing is rare.
        more = (0, 0, 0, 0, 0, (1 << (capacity - 1).bit_length()) - self.k.shape[1])
        return SoftmaxState(F.pad(self.k, more), F.pad(self.v, more), self.length, self.longest)


class SoftmaxAttention(AttentionKernel):
    """softmax(q·k · logit_scale) v (Vaswani et al. 2017, eq. 1)."""

    name = "softmax"
    accepts = frozenset({Site.EMBEDDING, Site.QUERY_KEY})

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        code: LayerCode,
        *,
        causal: bool,
        key_mask: Tensor | None = None,
        state: SoftmaxState | None = None,
        return_state: bool = False,
    ) -> tuple[Tensor, SoftmaxState | None]:
        q, k = code.encode(q, k)
        q, k = q.to(v.dtype), k.to(v.dtype)
        length = k.shape[1]
        visible = None
        if key_mask is not None:
            assert state is None, "a prefill has no padding"
            visible = key_mask[:, None, :]
            if causal:
                visible = visible & torch.ones(length, length, device=q.device).bool().tril()
        if state is not None:
            state = state.append(k, v)
            k, v = state.k[:, : state.longest], state.v[:, : state.longest]
            last = state.length[:, None] - length + torch.arange(length, device=q.device)  # [B, L]
            visible = torch.arange(state.longest, device=q.device) <= last[..., None]
        elif return_state:
            state = SoftmaxState.of(k, v)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            attn_mask=None if visible is None else visible[:, None],
            is_causal=causal and visible is None,
            scale=self.logit_scale,
        )
        return out.transpose(1, 2), state if return_state else None
