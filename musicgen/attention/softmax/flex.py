"""The logits of `blockwise_attention` in one GPU kernel: torch's FlexAttention."""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from musicgen.attention.softmax.pattern import AttentionPattern
from musicgen.position.logit.term import LagBounds, LagTable

# Queries and keys in a block of the mask, which is skipped or computed as a whole.
BLOCK = 128


def flex_attention_with_span(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: AttentionPattern,
    position_query: Tensor | None = None,
    table: LagTable | None = None,
) -> Tensor:
    """Compute `blockwise_attention` under a span; a query that sees nothing gives 0.

    On a CPU it runs eagerly, without a backward, for tests. The shapes of the tables depend on the
    window rounded up by `expand_bounds`, so that a learned window is seldom compiled again.
    """
    order = None
    if not pattern.consecutive:  # so that a block is close together in all dimensions
        order = torch.cat([q for q, _ in pattern.blocks() if isinstance(q, Tensor)])
        q, k, v = (x[:, :, order] for x in (q, k, v))
        position_query = None if position_query is None else position_query[:, :, order]
    batch = len(q)
    index = pattern.index if order is None else order
    positions = pattern.k_positions[:, index].expand(batch, -1, -1)
    span = pattern.span
    assert span is not None
    assert span.window is not None
    reach = torch.tensor(span.window, device=q.device)
    # A table [P, N] by distance: all pairs' gradients would be added to one number in turn.
    ((_, last),) = expand_bounds(((0, max(span.window)),))
    log_gauss_of = -span.decay[:, None] * torch.arange(last + 1, device=q.device).square()
    products = None
    bounds = torch.zeros(0, 2, dtype=torch.long)
    if table is not None and position_query is not None:
        products = position_query @ table.values.to(q.dtype).transpose(-1, -2)
        products = products.float()  # [B, H, L, N]; its gradient is summed pair by pair
        bounds = torch.tensor(table.bounds, device=q.device)
    columns = torch.tensor([[0]] if table is None else table.columns, device=q.device)
    columns = columns.expand(q.shape[1], -1)  # [H, num_dims]
    table_dims, span_dims, multiply = len(bounds), len(reach), span.multiply

    # Window and bounds are tensors: it would be compiled again whenever a number changes.
    def score(logit: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if products is not None:
            row = torch.zeros_like(i)
            for dim in range(table_dims):  # as `LagTable.rows`
                low, high = bounds[dim, 0], bounds[dim, 1]
                column = columns[h, dim]
                lag = positions[b, j, column] - positions[b, i, column]
                row = row * (high - low + 1) + torch.minimum(torch.maximum(lag, low), high) - low
            logit = logit + products[b, h, i, row]
        log_gauss = torch.zeros_like(logit)
        for dim in range(span_dims):
            distance = (positions[b, j, dim] - positions[b, i, dim]).abs()
            log_gauss = log_gauss + log_gauss_of[dim, torch.minimum(distance, reach[dim])]
        return logit * torch.exp(log_gauss) if multiply else logit + log_gauss

    mask = _block_mask(pattern, positions, index, reach)
    attend: Any = _compiled() if q.is_cuda else flex_attention
    out = attend(q, k, v, score_mod=score, block_mask=mask, scale=1.0)
    if order is None:
        return out
    return torch.empty_like(out).index_copy(2, order, out)


def expand_bounds(bounds: LagBounds) -> LagBounds:
    """Expand bounds of lags to multiples of 64 positions, or of 8 in several dimensions."""
    multiple = 64 if len(bounds) == 1 else 8
    return tuple(
        (low // multiple * multiple, -(-high // multiple) * multiple) for low, high in bounds
    )


@cache
def _compiled() -> Any:
    return torch.compile(flex_attention)


def _block_mask(
    pattern: AttentionPattern, positions: Tensor, index: Tensor, reach: Tensor
) -> BlockMask:
    """Return the mask of tokens at positions [B, L, P], with indices [L] in the sequence."""
    length, num_dims = len(index), len(reach)
    causal, key_mask = pattern.last is not None, pattern.key_mask
    if key_mask is not None:
        key_mask = key_mask[:, index]

    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        inside = i == i
        for dim in range(num_dims):
            inside = inside & ((positions[b, j, dim] - positions[b, i, dim]).abs() <= reach[dim])
        if causal:
            inside = inside & (index[j] <= index[i])
        if key_mask is not None:
            inside = inside & key_mask[b, j]
        return inside

    # Each block's bounds over all rows; the last block repeats its last token.
    num_blocks = -(-length // BLOCK)
    members = torch.arange(num_blocks * BLOCK, device=index.device).clamp(max=length - 1)
    members = members.unflatten(0, (num_blocks, BLOCK))
    block = positions[:, members, :num_dims]  # [B, blocks, BLOCK, P]
    low, high = block.amin((0, 2)), block.amax((0, 2))
    nearest, furthest = low - high[:, None], high - low[:, None]  # lags: [q blocks, k blocks, P]
    some = ((nearest <= reach) & (furthest >= -reach)).all(-1)
    every = ((nearest >= -reach) & (furthest <= reach)).all(-1)
    if causal:
        first, last = index[members].amin(1), index[members].amax(1)
        some, every = some & (first <= last[:, None]), every & (last <= first[:, None])
    if key_mask is not None:
        every = torch.zeros_like(every)
    elif length % BLOCK:
        every[-1], every[:, -1] = False, False
    return BlockMask.from_kv_blocks(
        *_ordered(some & ~every), *_ordered(every), BLOCK, visible, seq_lengths=(length, length)
    )


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of key blocks of each query block, and their indices, padded by others."""
    indices = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1).int()[None, None], indices.int()[None, None]
