"""The causal product for CPUs: quadratic within chunks of T tokens, recurrent between them.

A log decay is [H], the same at all tokens, or [B, L, H], for each token the decay of all earlier
ones. The pair (n, m) is weighted by the exponential of its sum over the tokens after m up to n.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from musicgen.attention.linear.state import (
    LinearState,
    ProductInputs,
    RescalePoints,
    normaliser,
    segments,
)

# How many numbers of a group's chunk fit a CPU's cache.
_CACHE_SIZE = 2**17


class DecayFactors(NamedTuple):
    """Decay factors between a chunk of T tokens and the tokens around it, at most 1.

    At a rescale point, `from_start` and `total` leave out the decay of the chunk's first token,
    which the factor of the rescale point contains.
    """

    from_start: Tensor  # [B·H, T, 1]: from the chunk before to token n
    to_end: Tensor  # [B·H, T, 1]: from token m to the chunk's end
    total: Tensor  # [B·H, 1, 1]: from the chunk before to this chunk's end


def chunked(inputs: ProductInputs) -> tuple[Tensor, LinearState]:
    """Return the product [B, L, H, V], in time linear in length, and the state after it.

    Its backward pass is written by hand (`_Chunked`).
    """
    norm_q, norm_k = inputs.norm or (None, None)
    state = inputs.state
    out, kv, k_sum = _Chunked.apply(
        inputs.q,
        inputs.k,
        inputs.v,
        norm_q,
        norm_k,
        inputs.log_decay,
        None if state is None else state.kv,
        None if state is None else state.k,
        inputs.rescale_points,
        inputs.eps,
        torch.is_grad_enabled(),
    )
    return out, LinearState(kv, k_sum)


class _Plan:
    """The groups of sequences that are computed together, the chunks, and their pairs' weights."""

    def __init__(self, q: Tensor, v: Tensor, log_decay: Tensor | None, points: RescalePoints):
        batch, length, heads, width = q.shape
        # Small products fit a CPU's cache; a GPU is faster with few, large ones.
        chunk_length, most = 256, batch
        if q.device.type == "cpu":
            chunk_length = 64
            sequence_size = chunk_length * heads * (width + v.shape[-1])
            most = min(batch, max(1, _CACHE_SIZE // sequence_size))
        group_size = next(size for size in range(most, 0, -1) if batch % size == 0)
        self.groups = [slice(start, start + group_size) for start in range(0, batch, group_size)]
        self.chunks = list(segments(length, points, chunk_length))
        self.points = points
        # Without a decay by token, chunks of the same form have the same weights.
        self.weights: dict[tuple[int, bool], tuple[Tensor, DecayFactors | None]] = {}
        if log_decay is None or log_decay.dim() == 1:
            for size, rescaled in {self._form(chunk) for chunk in self.chunks}:
                if log_decay is None:
                    self.weights[size, rescaled] = q.new_ones(size, size).tril_(), None
                else:
                    rates = log_decay.repeat(group_size)[:, None].expand(-1, size)
                    self.weights[size, rescaled] = chunk_decay(rates, rescaled)

    def pair_weights(
        self, group: slice, chunk: slice, log_decay: Tensor | None
    ) -> tuple[Tensor, DecayFactors | None]:
        """Return the weights of a chunk's pairs, [T, T] or [B·H, T, T], and the decay around it."""
        size, rescaled = self._form(chunk)
        if self.weights or log_decay is None:
            return self.weights[size, rescaled]
        return chunk_decay(_by_head(log_decay, group, chunk), rescaled)

    def _form(self, chunk: slice) -> tuple[int, bool]:
        return chunk.stop - chunk.start, chunk.start in self.points


class _Chunked(torch.autograd.Function):
    """The product, with a backward pass that computes the weights within chunks again.

    For the backward pass it keeps inputs, output, normaliser and the sums of each chunk. The
    normaliser is computed separately, not as an additional column of the values, whose width stays
    a power of two.
    """

    @staticmethod
    def forward(  # noqa: PLR0913
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        norm_q: Tensor | None,
        norm_k: Tensor | None,
        log_decay: Tensor | None,
        first_kv: Tensor | None,
        first_k: Tensor | None,
        points: RescalePoints,
        eps: float,
        grad_enabled: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        keep = grad_enabled and any(ctx.needs_input_grad)
        batch, _, heads, width = q.shape
        plan = _Plan(q, v, log_decay, points)
        slots = len(plan.chunks) + 1 if keep else 2  # without a backward pass, the last two suffice
        kvs = q.new_empty(slots, batch, heads, width, v.shape[-1])
        k_sums = q.new_empty(slots, batch, heads, (k if norm_k is None else norm_k).shape[-1], 1)
        kvs[0] = 0 if first_kv is None else first_kv
        k_sums[0] = 0 if first_k is None else first_k[..., None]
        out, divisor = torch.empty_like(v), v.new_empty(*v.shape[:-1], 1)
        for group in plan.groups:
            for i, chunk in enumerate(plan.chunks):
                within, decay = plan.pair_weights(group, chunk, log_decay)
                (kv, k_sum), (next_kv, next_k_sum) = (
                    (kvs[j % slots, group].flatten(0, 1), k_sums[j % slots, group].flatten(0, 1))
                    for j in (i, i + 1)
                )
                if chunk.start in points:
                    for x in (kv, k_sum):
                        x *= points[chunk.start][group].flatten(0, 1)[..., None]
                q_c, k_c, v_c = (_heads_first(x, group, chunk) for x in (q, k, v))  # [B·H, T, ·]
                inner = torch.bmm(q_c, k_c.mT).mul_(within)
                nq_c, nk_c, norm_inner = q_c, k_c, inner
                if norm_q is not None and norm_k is not None:
                    nq_c, nk_c = (_by_head(x, group, chunk) for x in (norm_q, norm_k))
                    norm_inner = torch.bmm(nq_c, nk_c.mT).mul_(within)
                numerator, denominator = torch.bmm(q_c, kv), torch.bmm(nq_c, k_sum)
                if decay is not None:
                    numerator *= decay.from_start
                    denominator *= decay.from_start
                numerator.baddbmm_(inner, v_c)
                denominator = normaliser(denominator.add_(norm_inner.sum(-1, keepdim=True)), eps)
                _write(out, group, chunk, numerator.div_(denominator))
                _write(divisor, group, chunk, denominator)
                if decay is None:
                    torch.baddbmm(kv, k_c.mT, v_c, out=next_kv)
                    torch.add(k_sum, nk_c.sum(1)[..., None], out=next_k_sum)
                else:
                    torch.mul(kv, decay.total, out=next_kv).baddbmm_(k_c.mT, v_c * decay.to_end)
                    torch.mul(k_sum, decay.total, out=next_k_sum).baddbmm_(nk_c.mT, decay.to_end)
        if keep:
            ctx.save_for_backward(q, k, v, norm_q, norm_k, log_decay, out, divisor, kvs, k_sums)
            ctx.plan = plan
        last = len(plan.chunks) % slots
        # Copies: a view would keep every chunk's sums alive.
        kv, k_sum = kvs[last].clone(), k_sums[last, ..., 0].clone()
        ctx.mark_non_differentiable(kv, k_sum)
        return out, kv, k_sum

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        # In a compiled graph, autocast may be on here.
        with torch.autocast(grad_out.device.type, enabled=False):
            return _gradients(ctx, grad_out)


def _gradients(  # noqa: C901, PLR0912, PLR0915
    ctx: Any, grad_out: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the inputs of `_Chunked`."""
    q, k, v, norm_q, norm_k, log_decay, out, divisor, kvs, k_sums = ctx.saved_tensors
    grad_q, grad_k, grad_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    grad_nq = grad_nk = None
    if norm_q is not None:
        grad_nq, grad_nk = torch.empty_like(norm_q), torch.empty_like(norm_k)
    grad_kv = grad_k_sum = None
    if any(ctx.needs_input_grad[6:8]):
        grad_kv, grad_k_sum = torch.empty_like(kvs[0]), torch.empty_like(k_sums[0])
    for group in ctx.plan.groups:
        # Σ q gᵀ and Σ q h over later chunks, decayed to the end of this one.
        later_kv = torch.zeros_like(kvs[0, group].flatten(0, 1))
        later_k = torch.zeros_like(k_sums[0, group].flatten(0, 1))
        for i, chunk in reversed(list(enumerate(ctx.plan.chunks))):
            within, decay = ctx.plan.pair_weights(group, chunk, log_decay)
            kv, k_sum = (x[i, group].flatten(0, 1) for x in (kvs, k_sums))
            q_c, k_c, v_c, o_c, d_c, g_c = (
                _heads_first(x, group, chunk) for x in (q, k, v, out, divisor, grad_out)
            )
            # Gradients of the numerator and of the normaliser.
            g_c = g_c / d_c
            h_c = -(g_c * o_c).sum(-1, keepdim=True)
            to_pairs, to_k = torch.bmm(g_c, v_c.mT), torch.bmm(v_c, later_kv.mT)
            nq_c = q_c
            if grad_nq is None or grad_nk is None:
                to_pairs += h_c
                to_k += later_k.mT
            else:
                nq_c, nk_c = (_by_head(x, group, chunk) for x in (norm_q, norm_k))
                to_norm, to_nq, to_nk = h_c * within, h_c * k_sum.mT, later_k.mT
                if decay is not None:
                    to_nq, to_nk = to_nq * decay.from_start, to_nk * decay.to_end
                _write(grad_nq, group, chunk, to_nq.baddbmm_(to_norm, nk_c))
                _write(grad_nk, group, chunk, torch.baddbmm(to_nk, to_norm.mT, nq_c))
            to_pairs *= within
            pairs = torch.bmm(q_c, k_c.mT).mul_(within)
            to_v = torch.bmm(k_c, later_kv)
            if decay is not None:
                to_v *= decay.to_end
            _write(grad_v, group, chunk, to_v.baddbmm_(pairs.mT, g_c))
            if decay is not None:
                g_c, h_c = g_c * decay.from_start, h_c * decay.from_start
                to_k *= decay.to_end
                later_kv *= decay.total
                later_k *= decay.total
            _write(grad_k, group, chunk, to_k.baddbmm_(to_pairs.mT, q_c))
            to_q = torch.bmm(g_c, kv.mT)
            if norm_q is None:
                to_q.addcmul_(h_c, k_sum.mT)
            _write(grad_q, group, chunk, to_q.baddbmm_(to_pairs, k_c))
            later_kv.baddbmm_(q_c.mT, g_c)
            later_k.baddbmm_(nq_c.mT, h_c)
            if chunk.start in ctx.plan.points:
                for x in (later_kv, later_k):
                    x *= ctx.plan.points[chunk.start][group].flatten(0, 1)[..., None]
        if grad_kv is not None and grad_k_sum is not None:
            grad_kv[group] = later_kv.unflatten(0, (-1, q.shape[2]))
            grad_k_sum[group] = later_k.unflatten(0, (-1, q.shape[2]))
    grad_decay = None
    if log_decay is not None and ctx.needs_input_grad[5]:
        # The gradient of the log decay of token i is Σ ∂pair over the pairs m < i ≤ n, where
        # Σ_m ∂pair is q·∂q and Σ_n ∂pair is k·∂k. In high precision, as large terms cancel.
        dtype = precise(q)
        flow = _flow(q, grad_q, dtype) - _flow(k, grad_k, dtype)  # [B, L, H]
        if grad_nq is not None and grad_nk is not None:
            flow += _flow(norm_q, grad_nq, dtype) - _flow(norm_k, grad_nk, dtype)
        grad_decay = flow.flip(1).cumsum(1).flip(1)
        grad_decay = grad_decay.sum_to_size(log_decay.shape).to(log_decay.dtype)
    grad_first = (grad_kv, None if grad_k_sum is None else grad_k_sum[..., 0])
    grads = (grad_q, grad_k, grad_v, grad_nq, grad_nk, grad_decay, *grad_first)
    return *grads, None, None, None


def _flow(x: Tensor, grad: Tensor, dtype: torch.dtype) -> Tensor:
    return (x * grad).sum(-1).to(dtype)


def _by_head(x: Tensor, group: slice, chunk: slice) -> Tensor:
    """Return a chunk of a group of sequences [B, L, H, ...] as [B·H, T, ...]."""
    return x[group, chunk].transpose(1, 2).flatten(0, 1)


def _heads_first(x: Tensor, group: slice, chunk: slice) -> Tensor:
    """Return the same in contiguous memory, which makes several products faster."""
    return _by_head(x, group, chunk).contiguous()


def _write(to: Tensor, group: slice, chunk: slice, x: Tensor) -> None:
    """Write [B·H, T, ·] to a chunk of a group of sequences [B, L, H, ·]."""
    heads = to.size(2)  # with `shape[2]`, torch 2.11 fails to compile a second length
    to[group, chunk] = x.unflatten(0, (-1, heads)).transpose(1, 2)


def precise(x: Tensor) -> torch.dtype:
    """Return the dtype of sums whose terms cancel: fp64, or fp32 on Apple's GPUs, without fp64."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def chunk_decay(log_decay: Tensor, rescaled: bool) -> tuple[Tensor, DecayFactors]:
    """Return the weights of a chunk's pairs, 0 where m > n, and the decay around the chunk.

    Args:
        log_decay: [B·H, T].
        rescaled: the chunk begins at a rescale point.
    """
    sums = log_decay.to(precise(log_decay)).cumsum(-1)
    within = (sums[:, :, None] - sums[:, None, :]).to(log_decay.dtype)
    within = within.exp_().tril_()  # [B·H, T, T]
    # `within` has no decay of the first token; without a rescale factor, it is added here.
    from_start = within[..., :1]
    if not rescaled:
        from_start = from_start * log_decay[:, :1, None].exp()
    return within, DecayFactors(from_start, within[:, -1, :, None], from_start[:, -1:])
