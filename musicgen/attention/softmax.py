"""Softmax attention: through torch's fused kernels, or by blocks where these form no logits."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from musicgen.attention.base import AttentionKernel
from musicgen.attention.blockwise import Pairs, blockwise_attention
from musicgen.attention.flex import fused_span_attention, rounded
from musicgen.attention.span import LayerSpan
from musicgen.position.base import LayerCode, Site
from musicgen.position.relative import RelativeCode


@dataclass(frozen=True)
class SoftmaxState:
    """Keys [B, C, H, E] and values [B, C, H, V] so far, with room for more, and lengths [B].

    Under a relative encoding or a span also their positions [B, C, P]. Under a span, what no later
    token will see is dropped when room runs out: this takes the first coordinate never to fall.
    """

    k: Tensor
    v: Tensor
    length: Tensor
    longest: int
    positions: Tensor | None = None
    reach: int | None = None  # of the first coordinate

    def select(self, rows: Tensor) -> SoftmaxState:
        """The states of the given rows, which may repeat."""
        positions = None if self.positions is None else self.positions[rows]
        return replace(
            self, k=self.k[rows], v=self.v[rows], length=self.length[rows], positions=positions
        )

    @staticmethod
    def cat(states: list[SoftmaxState]) -> SoftmaxState:
        """Rows of several states, one after the other."""
        capacity = max(state.k.shape[1] for state in states)  # a power of two, each
        states = [state.grow(capacity) for state in states]
        positions = [state.positions for state in states if state.positions is not None]
        return SoftmaxState(
            torch.cat([state.k for state in states]),
            torch.cat([state.v for state in states]),
            torch.cat([state.length for state in states]),
            max(state.longest for state in states),
            torch.cat(positions) if positions else None,
            states[0].reach,
        )

    @staticmethod
    def of(
        k: Tensor, v: Tensor, positions: Tensor | None = None, reach: int | None = None
    ) -> SoftmaxState:
        """The state after these keys and values."""
        batch, length = k.shape[:2]
        lengths = torch.full((batch,), length, device=k.device)
        if positions is not None:
            positions = positions.expand(batch, -1, -1)
        state = SoftmaxState(k, v, lengths, length, positions, reach).trim()
        return state.grow(state.longest + 1)

    def append(self, k: Tensor, v: Tensor, positions: Tensor | None = None) -> SoftmaxState:
        """With further keys and values [B, L, H, ·], each row's behind its own."""
        more = k.shape[1]
        room = self if self.longest + more <= self.k.shape[1] else self.trim()
        room = room.grow(room.longest + more)
        rows = torch.arange(len(k), device=k.device)[:, None]
        places = room.length[:, None] + torch.arange(more, device=k.device)
        if room.positions is not None and positions is not None:
            positions = positions.expand(len(k), -1, -1).to(room.positions.dtype)
            positions = room.positions.index_put((rows, places), positions)
        return replace(
            room,
            k=room.k.index_put((rows, places), k.to(room.k.dtype)),
            v=room.v.index_put((rows, places), v.to(room.v.dtype)),
            length=room.length + more,
            longest=room.longest + more,
            positions=positions,
        )

    def grow(self, capacity: int) -> SoftmaxState:
        """The same, with room for at least `capacity` tokens."""
        if capacity <= self.k.shape[1]:
            return self
        # In powers of two, so that growing is rare.
        missing = (1 << (capacity - 1).bit_length()) - self.k.shape[1]
        more = (0, 0, 0, 0, 0, missing)
        positions = None if self.positions is None else F.pad(self.positions, more[2:])
        return replace(self, k=F.pad(self.k, more), v=F.pad(self.v, more), positions=positions)

    def trim(self) -> SoftmaxState:
        """The same, without what lies further back than `reach` from each row's last token."""
        if self.reach is None or self.positions is None:
            return self
        index = torch.arange(self.longest, device=self.k.device)
        first = self.positions[:, : self.longest, 0]
        bound = first.gather(1, self.length[:, None] - 1) - self.reach
        dropped = ((first < bound) & (index < self.length[:, None])).sum(1)
        length = self.length - dropped
        longest = int(length.max())
        rows = torch.arange(len(length), device=index.device)[:, None]
        kept = (index[:longest] + dropped[:, None]).clamp(max=self.longest - 1)
        trimmed = replace(
            self,
            k=self.k[rows, kept],
            v=self.v[rows, kept],
            length=length,
            longest=longest,
            positions=self.positions[rows, kept],
        )
        # Room for a quarter more at least, so that trimming is rare.
        return trimmed.grow(longest + longest // 4 + 1)


class SoftmaxAttention(AttentionKernel):
    """softmax(q·k · logit_scale) v (Vaswani et al. 2017, eq. 1)."""

    name = "softmax"
    accepts = frozenset({Site.EMBEDDING, Site.QUERY_KEY, Site.LOGIT})
    supports_span = True

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        code: LayerCode,
        *,
        causal: bool,
        span: LayerSpan | None = None,
        key_mask: Tensor | None = None,
        state: SoftmaxState | None = None,
        return_state: bool = False,
    ) -> tuple[Tensor, SoftmaxState | None]:
        assert state is None or key_mask is None, "a prefill has no padding"
        q, k = code.encode(q, k)
        q, k = q.to(v.dtype), k.to(v.dtype)
        relative = code if isinstance(code, RelativeCode) else None
        located = span or relative
        positions = k_positions = None if located is None else located.positions
        last = torch.arange(q.shape[1], device=q.device)[None]  # the last key that a query sees
        fresh = state is None
        if state is not None:
            state = state.append(k, v, positions)
            k, v = state.k[:, : state.longest], state.v[:, : state.longest]
            last = state.length[:, None] - q.shape[1] + last  # [B, L]
            if state.positions is not None:
                k_positions = state.positions[:, : state.longest]
        elif return_state:
            reach = None if span is None or span.window is None else span.window[0]
            state = SoftmaxState.of(k, v, positions, reach)
        if positions is not None and k_positions is not None:
            pairs = Pairs(
                positions,
                k_positions,
                last if causal else None,
                key_mask,
                window=None if span is None else span.window,
                num_dims=max(
                    0 if span is None else span.num_dims,
                    0 if relative is None else relative.columns.stop,
                ),
                same=fresh,
            )
            out = self._explicit(q, k, v, pairs, relative, span)
        else:
            visible = None
            if causal and not (fresh and key_mask is None):
                visible = torch.arange(k.shape[1], device=q.device) <= last[..., None]
            if key_mask is not None:
                visible = key_mask[:, None] if visible is None else visible & key_mask[:, None]
            out = F.scaled_dot_product_attention(
                q.transpose(1, 2),
                k.transpose(1, 2),
                v.transpose(1, 2),
                attn_mask=None if visible is None else visible[:, None],
                is_causal=causal and visible is None,
                scale=self.logit_scale,
            )
        return out.transpose(1, 2), state if return_state else None

    def step(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        code: LayerCode,
        state: SoftmaxState,
        *,
        span: LayerSpan | None = None,
    ) -> tuple[Tensor, SoftmaxState]:
        return self(q, k, v, code, causal=True, span=span, state=state, return_state=True)

    def _explicit(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        pairs: Pairs,
        relative: RelativeCode | None,
        span: LayerSpan | None,
    ) -> Tensor:
        """With logits that fused kernels do not form: [B, L, H, ·] -> [B, H, L, V]."""
        fused = q.is_cuda and pairs.same and pairs.window is not None
        q_position = table = None
        if relative is not None:
            q, q_position = relative.queries(q)
            q_position = (q_position * self.logit_scale).transpose(1, 2)
            box = pairs.box()[relative.columns]
            table = relative.table(rounded(box) if fused else box)
        form = fused_span_attention if fused else blockwise_attention
        return form(
            (q * self.logit_scale).transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            pairs,
            q_position=q_position,
            table=table,
            decay=None if span is None else span.decay,
            multiply=span is not None and span.multiply,
        )
