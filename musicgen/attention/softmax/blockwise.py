"""Softmax attention by blocks of queries, each against the keys that it may see.

It computes logits that torch's fused attention does not support: with a logit term, a span, or
both. No array of all pairs exists at any time, and the backward pass computes each block again.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from musicgen.attention.softmax.pattern import BLOCK, AttentionPattern, Index
from musicgen.position.base import LagTable, LayerLogits


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
        layer_logits: the positional term (see `LogitTerm`); None: there is none.

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
    plan = _Plan(pattern, table, list(pattern.blocks()))
    if len(plan.blocks) > 1:  # so that products need no copy of a block
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        position_query = None if position_query is None else position_query.contiguous()
    decay = None if pattern.span is None else pattern.span.decay
    return _Blockwise.apply(plan, v, q, k, position_query, values, decay)


@dataclass(frozen=True)
class _Plan:
    """How to compute attention: the visible pairs, the table over lags, and the blocks."""

    pattern: AttentionPattern
    table: LagTable | None
    blocks: list[tuple[Index, Index]]

    def weights(
        self,
        block: tuple[Index, Index],
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
        lags = self.pattern.lags(*block)
        if position_query is not None and values is not None:
            logits = logits + self._by_lag(position_query, values, lags).to(dtype)
        # [1|B, 1, C, W] each: small arrays are combined first, so that large ones are read once.
        hidden = ~self.pattern.visible(*block, lags)[:, None]
        offset = torch.zeros_like(hidden, dtype=dtype)
        if decay is None:
            logits = logits + offset.masked_fill_(hidden, torch.finfo(dtype).min)
        else:
            distance = lags[..., : len(decay)].to(dtype).square()
            log_gauss = -(distance @ decay.to(dtype))[:, None]
            assert self.pattern.span is not None
            if self.pattern.span.multiply:
                offset.masked_fill_(hidden, torch.finfo(dtype).min)
                logits = torch.addcmul(offset, logits, log_gauss.exp())
            else:
                logits = logits + log_gauss.masked_fill(hidden, torch.finfo(dtype).min)
        weights = logits.softmax(-1)
        if self.pattern.key_mask is None:  # each query sees itself
            return weights
        return weights.masked_fill(hidden.all(-1, keepdim=True), 0)

    def slices(self, block: tuple[Index, Index]) -> list[Any]:
        """Return the index of a block in each tensor argument of `weights`, in their order."""
        queries, keys = block
        table_rows = slice(None)
        if self.table is not None and self.pattern.consecutive:
            assert isinstance(queries, slice)
            assert isinstance(keys, slice)
            ((low, _),) = self.table.bounds
            first = keys.start - (queries.stop - 1) - low + BLOCK + 1
            # One more than there are lags, for `_by_lag`.
            num_rows = (queries.stop - queries.start) + (keys.stop - keys.start)
            table_rows = slice(first, first + num_rows)
        return [_tokens(queries), _tokens(keys), _tokens(queries), (slice(None), table_rows), ...]

    def _by_lag(self, query: Tensor, values: Tensor, lags: Tensor) -> Tensor:
        """Return the product of each query with the table's row for each pair: [B, H, C, W].

        Args:
            query: [B, H, C, K'].
            values: rows of the table [H, N, K'].
            lags: [1|B, C, W, P].
        """
        num_queries, num_keys = lags.shape[1:3]
        if self.pattern.consecutive:
            products = query @ values.mT  # [B, H, C, N]
            # The pair (c, w) needs the product in row c and column w + (C − 1) − c of [C, N]. In
            # the flattened array its index is c·(N − 1) + w + (C − 1). Without the first C − 1
            # elements, it is the element (c, w) of an array [C, N − 1].
            row_length = products.shape[-1] - 1
            flat = products.flatten(-2)[..., num_queries - 1 :][..., : num_queries * row_length]
            return flat.unflatten(-1, (num_queries, row_length))[..., :num_keys]
        assert self.table is not None
        index = self.table.rows(lags)
        if num_keys * values.shape[-1] < values.shape[-2]:  # cheaper than products with all rows
            heads = torch.arange(len(values), device=index.device)[:, None, None]
            return (query[..., None, :] @ values[heads, index].mT).squeeze(-2)
        products = query @ values.mT
        return products.gather(-1, index.expand(*products.shape[:3], num_keys))


class _Blockwise(torch.autograd.Function):
    """The weights times the values, by blocks; the backward pass computes the weights again."""

    @staticmethod
    def forward(ctx: Any, plan: _Plan, v: Tensor, *inputs: Tensor | None) -> Tensor:
        ctx.plan = plan
        ctx.save_for_backward(v, *inputs)
        out = torch.empty_like(v[:, :, :1].expand(-1, -1, plan.pattern.q_positions.shape[1], -1))
        with torch.autocast(v.device.type, enabled=False):
            for block in plan.blocks:
                queries, keys = map(_tokens, block)
                weights = plan.weights(block, *_sliced(inputs, plan.slices(block)))
                out[queries] = weights.to(v.dtype) @ v[keys]
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
                slices = plan.slices(block)
                parts = [
                    None if x is None else x.detach().requires_grad_(total is not None)
                    for x, total in zip(_sliced(inputs, slices), grads[1:], strict=True)
                ]
                with torch.enable_grad():
                    weights = plan.weights(block, *parts)
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
        return None, *(
            None if total is None else total.to(x.dtype)
            for x, total in zip((v, *inputs), grads, strict=True)
        )


def _tokens(index: Index) -> tuple[slice, slice, Index]:
    """Return the index of tokens of [B, H, L, ·]."""
    return slice(None), slice(None), index


def _sliced(inputs: Any, slices: list[Any]) -> list[Any]:
    return [None if x is None else x[index] for x, index in zip(inputs, slices, strict=True)]
