"""The logits of `blockwise_attention` in one fused GPU kernel: torch's FlexAttention."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from musicgen.attention.blockwise import Pairs
from musicgen.position.relative import Box, LagTable

# Queries and keys in a block of the mask: what the kernel skips or computes as a whole.
BLOCK = 128


def fused_span_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pairs: Pairs,
    *,
    q_position: Tensor | None = None,
    table: LagTable | None = None,
    decay: Tensor | None,
    multiply: bool = False,
) -> Tensor:
    """As `blockwise_attention`, but for queries that see nothing, whose output is 0.

    Eager on a CPU, where there is no backward: for tests. The shapes of what the kernel reads
    depend on the window rounded up by `rounded`, so that it is compiled anew only now and then.
    """
    order = None
    if not pairs.consecutive:  # so that a block lies together, in all dimensions
        order = torch.cat([queries for queries, _ in pairs.blocks() if isinstance(queries, Tensor)])
        q, k, v = (x[:, :, order] for x in (q, k, v))
        q_position = None if q_position is None else q_position[:, :, order]
    batch = len(q)
    index = pairs.index if order is None else order
    positions = pairs.k_positions[:, index].expand(batch, -1, -1)
    assert pairs.window is not None
    assert decay is not None
    gauss, reach = _gauss_of_lag(decay, pairs.window), torch.tensor(pairs.window, device=q.device)
    products = None
    bounds = torch.zeros(0, 3, dtype=torch.long)
    if table is not None and q_position is not None:
        products = q_position @ table.values.to(q.dtype).transpose(-1, -2)
        products = products.float()  # [B, H, L, N]; its gradient is summed pair by pair
        bounds = torch.tensor(_strided(table.box), device=q.device)
    encoded = positions if table is None else positions[..., table.columns]
    table_dims, span_dims = len(bounds), len(reach)

    # No number that changes with the window is in here, only tensors: else each would compile.
    def score(logit: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if products is not None:
            place = torch.zeros_like(i)
            for dim in range(table_dims):
                low, high, stride = bounds[dim, 0], bounds[dim, 1], bounds[dim, 2]
                lag = encoded[b, j, dim] - encoded[b, i, dim]
                place = place + (torch.minimum(torch.maximum(lag, low), high) - low) * stride
            logit = logit + products[b, h, i, place]
        log_gauss = torch.zeros_like(logit)
        for dim in range(span_dims):
            distance = (positions[b, j, dim] - positions[b, i, dim]).abs()
            log_gauss = log_gauss + gauss[dim, torch.minimum(distance, reach[dim])]
        return logit * torch.exp(log_gauss) if multiply else logit + log_gauss

    mask = _block_mask(pairs, positions, index, reach)
    kernel: Any = _compiled() if q.is_cuda else flex_attention
    out = kernel(q, k, v, score_mod=score, block_mask=mask, scale=1.0)
    if order is None:
        return out
    return torch.empty_like(out).index_copy(2, order, out)


def rounded(box: Box) -> Box:
    """A box of lags, made larger to multiples of a number of positions."""
    by = 64 if len(box) == 1 else 8
    return tuple((low // by * by, -(-high // by) * by) for low, high in box)


def _strided(box: Box) -> list[tuple[int, int, int]]:
    """First and last lag of each dimension, and how far apart its lags are in a table."""
    rows, stride = [], 1
    for low, high in reversed(box):
        rows.append((low, high, stride))
        stride *= high - low + 1
    return rows[::-1]


@cache
def _compiled() -> Any:
    return torch.compile(flex_attention)


def _gauss_of_lag(decay: Tensor, window: tuple[int, ...]) -> Tensor:
    """The logarithm of each dimension's Gaussian, by distance: [P, N].

    A table, as the gradient of one number from all pairs would have them wait for each other.
    """
    ((_, last),) = rounded(((0, max(window)),))
    distance = torch.arange(last + 1, device=decay.device)
    return -decay[:, None] * distance.square()


def _block_mask(pairs: Pairs, positions: Tensor, index: Tensor, reach: Tensor) -> BlockMask:
    """Which pairs are seen, of tokens [B, L, P] whose place in the sequence is `index` [L]."""
    length, num_dims = len(index), len(reach)
    causal, key_mask = pairs.last is not None, pairs.key_mask
    if key_mask is not None:
        key_mask = key_mask[:, index]

    def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        inside = i == i
        for dim in range(num_dims):
            inside = inside & ((positions[b, j, dim] - positions[b, i, dim]).abs() <= reach[dim])
        if causal:
            inside = inside & (index[j] <= index[i])
        if key_mask is not None:
            inside = inside & key_mask[b, j]
        return inside

    # Each block's box, in all rows; the last one is filled up with its last token.
    num_blocks = -(-length // BLOCK)
    members = torch.arange(num_blocks * BLOCK, device=index.device).clamp(max=length - 1)
    members = members.unflatten(0, (num_blocks, BLOCK))
    here = positions[:, members, :num_dims]  # [B, blocks, BLOCK, P]
    low, high = here.amin((0, 2)), here.amax((0, 2))
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
        *_ordered(some & ~every), *_ordered(every), BLOCK, seen, seq_lengths=(length, length)
    )


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of keys each block of queries meets, and which: those first."""
    which = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1).int()[None, None], which.int()[None, None]
