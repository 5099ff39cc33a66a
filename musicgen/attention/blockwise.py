"""Softmax attention by blocks of queries, each against only those keys that it may see.

For logits that no fused kernel forms on a CPU: with a relative encoding, under a span, or both.
Nothing of the size of all pairs exists at a time, and the backward computes each block anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from musicgen.position.relative import Box, LagTable

# Queries in a block.
BLOCK = 128

Index = slice | Tensor


@dataclass(frozen=True)
class Pairs:
    """Which queries meet which keys, and how they lie to each other.

    Attributes:
        q_positions, k_positions: [1|B, Lq, P] and [1|B, Lk, P].
        last: [1|B, Lq], the index of the last key that a query may see; None: it may see all.
        key_mask: [B, Lk], true where a key may be seen.
        window: the furthest lag that is seen in each dimension; None without a limit.
        num_dims: coordinates that matter.
        same: the queries are those of the keys, in order.
    """

    q_positions: Tensor
    k_positions: Tensor
    last: Tensor | None
    key_mask: Tensor | None
    window: tuple[int, ...] | None
    num_dims: int
    same: bool

    @cached_property
    def consecutive(self) -> bool:
        """Each token's position is one behind that of the token before."""
        steps = self.k_positions[..., 0].diff(dim=-1)
        return self.same and self.num_dims == 1 and bool((steps == 1).all())

    def box(self) -> Box:
        """The lags of all pairs that see each other, and maybe more."""
        if self.consecutive:
            furthest = self.k_positions.shape[1] - 1
            if self.window is not None:
                furthest = min(furthest, self.window[0])
            return ((-furthest, 0 if self.last is not None else furthest),)
        q, k = (x.flatten(0, 1)[:, : self.num_dims] for x in (self.q_positions, self.k_positions))
        bounds = torch.stack((k.amin(0) - q.amax(0), k.amax(0) - q.amin(0)), dim=-1).tolist()
        for i, far in enumerate(self.window or ()):
            bounds[i] = max(bounds[i][0], -far), min(bounds[i][1], far)
        return tuple((low, high) for low, high in bounds)

    def blocks(self) -> Iterator[tuple[Index, Index]]:
        """Queries, and the keys that one of them may see: all pairs, every query once."""
        num_queries, num_keys = self.q_positions.shape[1], self.k_positions.shape[1]
        if not self.consecutive and self.window is not None and self.same:
            yield from self._tiles(self.window)
            return
        for start in range(0, num_queries, BLOCK):
            stop = min(start + BLOCK, num_queries)
            first, behind = 0, num_keys
            if self.same and self.last is not None:
                behind = stop
            if self.consecutive and self.window is not None:
                first = max(0, start - self.window[0])
                behind = min(behind, stop + self.window[0])
            yield slice(start, stop), slice(first, behind)

    def _tiles(self, window: tuple[int, ...]) -> Iterator[tuple[Tensor, Tensor]]:
        """Blocks of queries that lie together, in all dimensions of the window."""
        positions = self.k_positions[..., : len(window)]
        side = round(BLOCK ** (1 / len(window)))
        _, tile, counts = torch.unique(
            positions[0] // side, dim=0, return_inverse=True, return_counts=True
        )
        reach = torch.tensor(window, device=tile.device)
        for members in tile.argsort(stable=True).split(counts.tolist()):
            for queries in members.split(BLOCK):
                here = positions[:, queries].flatten(0, 1)
                low, high = here.amin(0) - reach, here.amax(0) + reach
                near = ((positions >= low) & (positions <= high)).all(-1).any(0)
                if self.last is not None:
                    near &= self.index <= queries.max()
                yield queries, near.nonzero()[:, 0]

    def lags(self, queries: Index, keys: Index) -> Tensor:
        """Key minus query: [1|B, Lq, Lk, P]."""
        rows = slice(1) if self.consecutive else slice(None)
        q, k = self.q_positions[rows, queries], self.k_positions[rows, keys]
        return k[:, None] - q[:, :, None]

    def visible(self, queries: Index, keys: Index, lags: Tensor) -> Tensor:
        """[1|B, Lq, Lk]."""
        seen = torch.ones_like(lags[..., 0], dtype=torch.bool)
        for i, reach in enumerate(self.window or ()):
            seen &= lags[..., i].abs() <= reach
        if self.last is not None:
            seen = seen & (self.index[keys] <= self.last[:, queries, None])
        if self.key_mask is not None:
            seen = seen & self.key_mask[:, None, keys]
        return seen

    @cached_property
    def index(self) -> Tensor:
        """Of the keys, in order: [Lk]."""
        return torch.arange(self.k_positions.shape[1], device=self.k_positions.device)


def blockwise_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pairs: Pairs,
    *,
    q_position: Tensor | None = None,
    table: LagTable | None = None,
    decay: Tensor | None = None,
    multiply: bool = False,
) -> Tensor:
    """softmax(logits) v, the logits of a pair at lag x being q·k + q_position·table(x).

    With `decay` they are multiplied by exp(−Σ_i decay_i x_i²), or its logarithm is added.

    Args:
        q, k, v: [B, H, Lq, K], [B, H, Lk, K] and [B, H, Lk, V], the queries scaled.
        pairs: what is seen. Queries that see nothing average over any keys.
        q_position: [B, H, Lq, K], scaled, with `table`.
        decay: [P].

    Returns:
        [B, H, Lq, V].
    """
    values = None
    if table is not None:
        # What a block holds beyond the lags that are seen: masked.
        around = (0, 0, BLOCK + 1, BLOCK + 1) if pairs.consecutive else (0, 0)
        values = F.pad(table.values.to(q.dtype), around)
    plan = _Plan(pairs, table, multiply, list(pairs.blocks()))
    if len(plan.blocks) > 1:  # so that no block has to be copied
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        q_position = None if q_position is None else q_position.contiguous()
    return _Blockwise.apply(plan, v, q, k, q_position, values, decay)


@dataclass(frozen=True)
class _Plan:
    pairs: Pairs
    table: LagTable | None
    multiply: bool
    blocks: list[tuple[Index, Index]]

    def weights(
        self,
        block: tuple[Index, Index],
        q: Tensor,
        k: Tensor,
        q_position: Tensor | None,
        values: Tensor | None,
        decay: Tensor | None,
    ) -> Tensor:
        """One block's: q [B, H, C, K], k [B, H, W, K], the table's part -> [B, H, C, W]."""
        logits = q @ k.transpose(-1, -2)
        wide = torch.promote_types(logits.dtype, torch.float32)
        logits = logits.to(wide)
        lags = self.pairs.lags(*block)
        if q_position is not None and values is not None:
            products = q_position @ values.transpose(-1, -2)  # [B, H, C, N]
            logits = logits + self._by_lag(products, lags).to(wide)
        # [1|B, 1, C, W] each: what is small is put together first, what is large is passed once.
        hidden = ~self.pairs.visible(*block, lags)[:, None]
        offset = torch.zeros_like(hidden, dtype=wide)
        if decay is None:
            logits = logits + offset.masked_fill_(hidden, torch.finfo(wide).min)
        else:
            distance = lags[..., : len(decay)].to(wide).square()
            log_gauss = -(distance @ decay.to(wide))[:, None]
            if self.multiply:
                offset.masked_fill_(hidden, torch.finfo(wide).min)
                logits = torch.addcmul(offset, logits, log_gauss.exp())
            else:
                logits = logits + log_gauss.masked_fill(hidden, torch.finfo(wide).min)
        return logits.softmax(-1)

    def places(self, block: tuple[Index, Index]) -> list[Any]:
        """Where a block's part of the other arguments of `weights` is."""
        queries, keys = block
        lags = slice(None)
        if self.table is not None and self.pairs.consecutive:
            assert isinstance(queries, slice)
            assert isinstance(keys, slice)
            ((low, _),) = self.table.box
            first = keys.start - (queries.stop - 1) - low + BLOCK + 1
            # One more than there are lags, for `_by_lag`.
            lags = slice(first, first + (queries.stop - queries.start) + (keys.stop - keys.start))
        return [_part(queries), _part(keys), _part(queries), (slice(None), lags), ...]

    def _by_lag(self, products: Tensor, lags: Tensor) -> Tensor:
        """Products of queries with lags' encodings [B, H, C, N] -> with those of keys [.., W]."""
        num_queries, num_keys = lags.shape[1:3]
        if self.pairs.consecutive:
            # Pair (c, w) has lag number w + (C − 1) − c. In rows of N, at c·N + w + (C − 1) − c,
            # which from C − 1 on is (c, w) in rows of N − 1.
            rows = products.shape[-1] - 1
            flat = products.flatten(-2)[..., num_queries - 1 :][..., : num_queries * rows]
            return flat.unflatten(-1, (num_queries, rows))[..., :num_keys]
        assert self.table is not None
        index = self.table.places(lags)[:, None]
        return products.gather(-1, index.expand(*products.shape[:3], num_keys))


class _Blockwise(torch.autograd.Function):
    """The weights times the values, by blocks; the backward computes the weights again."""

    @staticmethod
    def forward(ctx: Any, plan: _Plan, v: Tensor, *inputs: Tensor | None) -> Tensor:
        ctx.plan = plan
        ctx.save_for_backward(v, *inputs)
        out = torch.empty_like(v[:, :, :1].expand(-1, -1, plan.pairs.q_positions.shape[1], -1))
        with torch.autocast(v.device.type, enabled=False):
            for block in plan.blocks:
                places = plan.places(block)
                weights = plan.weights(block, *_parts(inputs, places))
                out[_part(block[0])] = weights.to(v.dtype) @ v[_part(block[1])]
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        plan, (v, *inputs), (grad,) = ctx.plan, ctx.saved_tensors, grad_outputs
        grads = [
            torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32)) if need else None
            for x, need in zip((v, *inputs), ctx.needs_input_grad[1:], strict=True)
        ]
        with torch.autocast(v.device.type, enabled=False):
            for block in plan.blocks:
                places = plan.places(block)
                parts = [
                    None if x is None else x.detach().requires_grad_(total is not None)
                    for x, total in zip(_parts(inputs, places), grads[1:], strict=True)
                ]
                with torch.enable_grad():
                    weights = plan.weights(block, *parts)
                here, keys = grad[_part(block[0])], _part(block[1])
                leaves = [x for x in parts if x is not None and x.requires_grad]
                grad_weights = (here @ v[keys].transpose(-1, -2)).to(weights.dtype)
                found = iter(torch.autograd.grad(weights, leaves, grad_weights) if leaves else ())
                for total, place in zip(grads[1:], places, strict=True):
                    if total is not None:
                        total[place] += next(found)
                if grads[0] is not None:
                    grads[0][keys] += weights.detach().to(v.dtype).transpose(-1, -2) @ here
        return None, *(
            None if total is None else total.to(x.dtype)
            for x, total in zip((v, *inputs), grads, strict=True)
        )


def _part(index: Index) -> tuple[slice, slice, Index]:
    """Of [B, H, L, ·]."""
    return slice(None), slice(None), index


def _parts(inputs: Any, places: list[Any]) -> list[Any]:
    return [None if x is None else x[place] for x, place in zip(inputs, places, strict=True)]
