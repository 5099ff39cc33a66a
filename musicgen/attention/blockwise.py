"""Softmax attention by blocks of queries, each against the keys that it may see.

It computes logits that torch's fused attention does not support: with a logit term, a span, or
both. No array of all pairs exists at any time, and the backward pass computes each block again.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from musicgen.attention.span import LayerSpan
from musicgen.position.base import LagBounds, LagTable, LayerLogits

BLOCK = 128  # queries in a block

Index = slice | Tensor
Block = tuple[Index, Index]
"""Indices of queries, and of all keys that one of them may see."""


class AttentionPattern:
    """The visible pairs of queries and keys, and their lags.

    Args:
        q_positions, k_positions: [1|B, Lq, P] and [1|B, Lk, P].
        last: index of the last key that each query sees [1|B, Lq]; None: they see all.
        key_mask: [B, Lk], true where a key is visible.
        span: the layer's limit on lags.
        num_dims: number of coordinates with a lag; they are the first columns of positions.
        same_tokens: queries and keys belong to the same tokens.

    Attributes:
        window: the furthest visible lag in each dimension; None: no limit.
        index: indices of the keys [Lk].
    """

    def __init__(
        self,
        q_positions: Tensor,
        k_positions: Tensor,
        last: Tensor | None,
        key_mask: Tensor | None,
        span: LayerSpan | None,
        num_dims: int,
        same_tokens: bool,
    ) -> None:
        self.q_positions, self.k_positions = q_positions, k_positions
        self.last, self.key_mask, self.span = last, key_mask, span
        self.num_dims, self.same_tokens = num_dims, same_tokens
        self.window = None if span is None else span.window
        self.index = torch.arange(k_positions.shape[1], device=k_positions.device)

    @cached_property
    def consecutive(self) -> bool:
        """Whether positions grow by 1 from each token to the next."""
        steps = self.k_positions[..., 0].diff(dim=-1)
        return self.same_tokens and self.num_dims == 1 and bool((steps == 1).all())

    def lag_bounds(self) -> LagBounds:
        """Return bounds on the lags of all visible pairs."""
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

    def blocks(self) -> Iterator[Block]:
        """Yield blocks of queries, each query once, with all keys that one of them may see."""
        num_queries, num_keys = self.q_positions.shape[1], self.k_positions.shape[1]
        if not self.consecutive and self.window is not None and self.same_tokens:
            yield from self._tiles(self.window)
            return
        for start in range(0, num_queries, BLOCK):
            stop = min(start + BLOCK, num_queries)
            first, end = 0, num_keys
            if self.same_tokens and self.last is not None:
                end = stop
            if self.consecutive and self.window is not None:
                first = max(0, start - self.window[0])
                end = min(end, stop + self.window[0])
            yield slice(start, stop), slice(first, end)

    def _tiles(self, window: tuple[int, ...]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield blocks of queries that are close together in all dimensions of the window."""
        positions = self.k_positions[..., : len(window)]
        side = round(BLOCK ** (1 / len(window)))
        _, tile, counts = torch.unique(
            positions[0] // side, dim=0, return_inverse=True, return_counts=True
        )
        reach = torch.tensor(window, device=tile.device)
        for members in tile.argsort(stable=True).split(counts.tolist()):
            for queries in members.split(BLOCK):
                block = positions[:, queries].flatten(0, 1)
                low, high = block.amin(0) - reach, block.amax(0) + reach
                near = ((positions >= low) & (positions <= high)).all(-1).any(0)
                if self.last is not None:
                    near &= self.index <= queries.max()
                yield queries, near.nonzero()[:, 0]

    def lags(self, queries: Index, keys: Index) -> Tensor:
        """Return the lags, key position minus query position: [1|B, Lq, Lk, P]."""
        sequences = slice(1) if self.consecutive else slice(None)
        q, k = self.q_positions[sequences, queries], self.k_positions[sequences, keys]
        return k[:, None] - q[:, :, None]

    def visible(self, queries: Index, keys: Index, lags: Tensor) -> Tensor:
        """Return which pairs are visible: [1|B, Lq, Lk]."""
        visible = torch.ones_like(lags[..., 0], dtype=torch.bool)
        for i, reach in enumerate(self.window or ()):
            visible &= lags[..., i].abs() <= reach
        if self.last is not None:
            visible = visible & (self.index[keys] <= self.last[:, queries, None])
        if self.key_mask is not None:
            visible = visible & self.key_mask[:, None, keys]
        return visible


def blockwise_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: AttentionPattern,
    logit_scale: float,
    layer_logits: LayerLogits | None,
) -> Tensor:
    """Return softmax(logits) v, where the logits are logit_scale q·k plus a positional term.

    With a span, the logits are multiplied by its Gaussian, or the Gaussian's logarithm is added.

    Args:
        q, k, v: [B, Lq, H, K], [B, Lk, H, K] and [B, Lk, H, V].
        pattern: visible pairs. Queries that see no key give 0.
        logit_scale: factor on q·k.
        layer_logits: the positional term (see `LogitTerm`); None: no term.

    Returns:
        [B, H, Lq, V].
    """
    position_query = table = values = None
    if layer_logits is not None:
        position_query = layer_logits.term.position_query(q, logit_scale).transpose(1, 2)
        q = layer_logits.term.content_query(q)
        table = layer_logits.table(pattern.lag_bounds())
        # A block also has lags outside of the table. Their pairs are masked, but need table rows.
        padding = (0, 0, BLOCK + 1, BLOCK + 1) if pattern.consecutive else (0, 0)
        values = F.pad(table.values.to(q.dtype), padding)
    q, k, v = (q * logit_scale).transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    blocks = list(pattern.blocks())
    if len(blocks) > 1:  # so that products need no copy of a block
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        position_query = None if position_query is None else position_query.contiguous()
    decay = None if pattern.span is None else pattern.span.decay
    return _Blockwise.apply(pattern, table, blocks, v, q, k, position_query, values, decay)


def _weights(
    pattern: AttentionPattern,
    table: LagTable | None,
    block: Block,
    q: Tensor,
    k: Tensor,
    position_query: Tensor | None,
    values: Tensor | None,
    decay: Tensor | None,
) -> Tensor:
    """Compute a block's weights: q [B, H, C, K], k [B, H, W, K], table rows -> [B, H, C, W]."""
    logits = q @ k.transpose(-1, -2)
    dtype = torch.promote_types(logits.dtype, torch.float32)
    logits = logits.to(dtype)
    lags = pattern.lags(*block)
    if position_query is not None and values is not None:
        logits = logits + _by_lag(pattern, table, position_query, values, lags).to(dtype)
    # [1|B, 1, C, W] each: small arrays are combined first, so that large ones are read once.
    hidden = ~pattern.visible(*block, lags)[:, None]
    offset = torch.zeros_like(hidden, dtype=dtype)
    if decay is None:
        logits = logits + offset.masked_fill_(hidden, torch.finfo(dtype).min)
    else:
        distance = lags[..., : len(decay)].to(dtype).square()
        log_gauss = -(distance @ decay.to(dtype))[:, None]
        assert pattern.span is not None
        if pattern.span.multiply:
            offset.masked_fill_(hidden, torch.finfo(dtype).min)
            logits = torch.addcmul(offset, logits, log_gauss.exp())
        else:
            logits = logits + log_gauss.masked_fill(hidden, torch.finfo(dtype).min)
    weights = logits.softmax(-1)
    if pattern.key_mask is None:  # each query sees itself
        return weights
    return weights.masked_fill(hidden.all(-1, keepdim=True), 0)


def _slices(pattern: AttentionPattern, table: LagTable | None, block: Block) -> list[Any]:
    """Return the index of a block in each tensor argument of `_weights`, in their order."""
    queries, keys = block
    table_rows = slice(None)
    if table is not None and pattern.consecutive:
        assert isinstance(queries, slice)
        assert isinstance(keys, slice)
        ((low, _),) = table.bounds
        first = keys.start - (queries.stop - 1) - low + BLOCK + 1
        # One more than there are lags, for `_by_lag`.
        num_rows = (queries.stop - queries.start) + (keys.stop - keys.start)
        table_rows = slice(first, first + num_rows)
    return [_tokens(queries), _tokens(keys), _tokens(queries), (slice(None), table_rows), ...]


def _by_lag(
    pattern: AttentionPattern, table: LagTable | None, query: Tensor, values: Tensor, lags: Tensor
) -> Tensor:
    """Return the product of each query with the table's row per pair: [B, H, C, W].

    Args:
        query: [B, H, C, K'].
        values: rows of the table [H, N, K'].
        lags: [1|B, C, W, P].
    """
    num_queries, num_keys = lags.shape[1:3]
    if pattern.consecutive:
        products = query @ values.mT  # [B, H, C, N]
        # The pair (c, w) needs the product in row c and column w + (C − 1) − c of [C, N]. In
        # the flattened array its index is c·(N − 1) + w + (C − 1). Without the first C − 1
        # elements, it is the element (c, w) of an array [C, N − 1].
        row_length = products.shape[-1] - 1
        flat = products.flatten(-2)[..., num_queries - 1 :][..., : num_queries * row_length]
        return flat.unflatten(-1, (num_queries, row_length))[..., :num_keys]
    assert table is not None
    index = table.rows(lags)
    if num_keys * values.shape[-1] < values.shape[-2]:  # cheaper than products with all rows
        heads = torch.arange(len(values), device=index.device)[:, None, None]
        return (query[..., None, :] @ values[heads, index].mT).squeeze(-2)
    products = query @ values.mT
    return products.gather(-1, index.expand(*products.shape[:3], num_keys))


class _Blockwise(torch.autograd.Function):
    """The weights times the values, by blocks; the backward pass computes the weights again."""

    @staticmethod
    def forward(
        ctx: Any,
        pattern: AttentionPattern,
        table: LagTable | None,
        blocks: list[Block],
        v: Tensor,
        *inputs: Tensor | None,
    ) -> Tensor:
        ctx.pattern, ctx.table, ctx.blocks = pattern, table, blocks
        ctx.save_for_backward(v, *inputs)
        out = torch.empty_like(v[:, :, :1].expand(-1, -1, pattern.q_positions.shape[1], -1))
        with torch.autocast(v.device.type, enabled=False):
            for block in blocks:
                queries, keys = map(_tokens, block)
                parts = _sliced(inputs, _slices(pattern, table, block))
                weights = _weights(pattern, table, block, *parts)
                out[queries] = weights.to(v.dtype) @ v[keys]
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        pattern, table = ctx.pattern, ctx.table
        (v, *inputs), (grad,) = ctx.saved_tensors, grad_outputs
        grads = [
            torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32)) if need else None
            for x, need in zip((v, *inputs), ctx.needs_input_grad[3:], strict=True)
        ]
        with torch.autocast(v.device.type, enabled=False):
            for block in ctx.blocks:
                slices = _slices(pattern, table, block)
                parts: list[Any] = [
                    None if x is None else x.detach().requires_grad_(total is not None)
                    for x, total in zip(_sliced(inputs, slices), grads[1:], strict=True)
                ]
                with torch.enable_grad():
                    weights = _weights(pattern, table, block, *parts)
                grad_block, keys = grad[_tokens(block[0])], _tokens(block[1])
                leaves = [x for x in parts if x is not None and x.requires_grad]
                grad_weights = (grad_block @ v[keys].transpose(-1, -2)).to(weights.dtype)
                gradients = iter(
                    torch.autograd.grad(weights, leaves, grad_weights) if leaves else ()
                )
                for total, index in zip(grads[1:], slices, strict=True):
                    if total is not None:
                        total[index] += next(gradients)
                if grads[0] is not None:
                    grads[0][keys] += weights.detach().to(v.dtype).transpose(-1, -2) @ grad_block
        return (
            None,
            None,
            None,
            *(
                None if total is None else total.to(x.dtype)
                for x, total in zip((v, *inputs), grads, strict=True)
            ),
        )


def _tokens(index: Index) -> tuple[slice, slice, Index]:
    """Return the index of tokens of [B, H, L, ·]."""
    return slice(None), slice(None), index


def _sliced(inputs: Any, slices: list[Any]) -> list[Any]:
    return [None if x is None else x[index] for x, index in zip(inputs, slices, strict=True)]
