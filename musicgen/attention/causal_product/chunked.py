"""The form for any device: quadratic within chunks of T tokens, recurrent from chunk to chunk."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from musicgen.attention.causal_product.state import Breaks, LinearState, Norm, normaliser, spans


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    norm: Norm | None,
    log_decay: Tensor | None,
    state: LinearState | None,
    breaks: Breaks,
    eps: float,
) -> tuple[Tensor, LinearState]:
    """Linear in length, with a backward of its own. Arguments as `causal_linear_attention`'s."""
    norm_q, norm_k = norm or (None, None)
    inputs = (q, k, v, norm_q, norm_k, log_decay)
    wanted = (x is not None and x.requires_grad for x in inputs)
    keep = torch.is_grad_enabled() and any(wanted)
    kv, k_sum = (None, None) if state is None else (state.kv, state.k)
    out, kv, k_sum = _Chunked.apply(*inputs, kv, k_sum, breaks, eps, keep)
    return out, LinearState(kv, k_sum)


# On a CPU, numbers that a chunk works on: so many stay in the cache.
_IN_CACHE = 2**17


def _chunk_length(device: torch.device) -> int:
    """A CPU's caches like small chunks; a GPU wants few, large kernels."""
    return 64 if device.type == "cpu" else 256


def _row_groups(q: Tensor, v: Tensor) -> list[slice]:
    """Rows of the batch that are computed together, as many in each group."""
    batch, _, heads, width = q.shape
    most = batch
    if q.device.type == "cpu":
        row = _chunk_length(q.device) * heads * (width + v.shape[-1])
        most = min(batch, max(1, _IN_CACHE // row))
    step = next(rows for rows in range(most, 0, -1) if batch % rows == 0)
    return [slice(start, start + step) for start in range(0, batch, step)]


class _Fade(NamedTuple):
    """Powers of γ that link a chunk of T tokens to those around it, each at most 1."""

    since: Tensor  # [B·H, T, 1]: γ^(n + 1), from the chunk before to token n
    until: Tensor  # [B·H, T, 1]: γ^(T − 1 − m), from token m to the chunk's end
    whole: Tensor  # [B·H, 1, 1]: γ^T


class _Weights(NamedTuple):
    """What the pairs of a chunk weigh."""

    within: Tensor  # [T, T] or, with decay, [B·H, T, T]: γ^(n − m) for m ≤ n, else 0
    fade: _Fade | None

    @staticmethod
    def over(length: int, log_decay: Tensor | None, like: Tensor) -> _Weights:
        if log_decay is None:
            return _Weights(like.new_ones(length, length).tril_(), None)
        n = torch.arange(length, device=like.device)
        rate = log_decay[:, None, None]
        return _Weights(
            (rate * (n[:, None] - n).clamp(min=0)).exp().tril(),
            _Fade(
                (rate * (n + 1)[:, None]).exp(),
                (rate * (length - 1 - n)[:, None]).exp(),
                (rate * length).exp(),
            ),
        )


class _Plan:
    """The chunks of a sequence, what their pairs weigh, and the rows computed together."""

    def __init__(self, q: Tensor, v: Tensor, log_decay: Tensor | None, breaks: Breaks) -> None:
        self.parts = list(spans(q.shape[1], breaks, _chunk_length(q.device)))
        self.groups = _row_groups(q, v)
        rows = self.groups[0].stop
        rates = None if log_decay is None else log_decay.repeat(rows)  # [B·H]
        lengths = {part.stop - part.start for part in self.parts}
        self.weights = {n: _Weights.over(n, rates, q) for n in lengths}


class _Chunked(torch.autograd.Function):
    """Kept for the backward: inputs, output, normaliser, and the sums before each chunk.

    Weights within chunks are computed again. The normaliser is the sum that values of one would
    have; it is computed beside the values, whose width stays a round number for the processor.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        norm_q: Tensor | None,
        norm_k: Tensor | None,
        log_decay: Tensor | None,
        kv: Tensor | None,
        k_sum: Tensor | None,
        breaks: Breaks,
        eps: float,
        keep: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        batch, _, heads, width = q.shape
        plan = _Plan(q, v, log_decay, breaks)
        slots = len(plan.parts) + 1 if keep else 2  # without a backward, the last two will do
        kvs = q.new_empty(slots, batch, heads, width, v.shape[-1])
        k_sums = q.new_empty(slots, batch, heads, (k if norm_k is None else norm_k).shape[-1], 1)
        kvs[0] = 0 if kv is None else kv
        k_sums[0] = 0 if k_sum is None else k_sum[..., None]
        out, divisor = torch.empty_like(v), v.new_empty(*v.shape[:-1], 1)
        for rows in plan.groups:
            for i, part in enumerate(plan.parts):
                now, then = i % slots, (i + 1) % slots
                (kv, k_sum), (kv_then, k_sum_then) = (
                    (kvs[j, rows].flatten(0, 1), k_sums[j, rows].flatten(0, 1)) for j in (now, then)
                )
                if part.start in breaks:
                    factor = breaks[part.start][rows].flatten(0, 1)[..., None]
                    kv *= factor
                    k_sum *= factor
                within, fade = plan.weights[part.stop - part.start]
                q_c, k_c, v_c = (_heads_first(x, rows, part) for x in (q, k, v))  # [B·H, T, ·]
                inner = torch.bmm(q_c, k_c.mT).mul_(within)
                nq_c, nk_c, norm_inner = q_c, k_c, inner
                if norm_q is not None and norm_k is not None:
                    nq_c, nk_c = (_by_head(x, rows, part) for x in (norm_q, norm_k))
                    norm_inner = torch.bmm(nq_c, nk_c.mT).mul_(within)
                numerator, denominator = torch.bmm(q_c, kv), torch.bmm(nq_c, k_sum)
                if fade is not None:
                    numerator *= fade.since
                    denominator *= fade.since
                numerator.baddbmm_(inner, v_c)
                denominator = normaliser(denominator.add_(norm_inner.sum(-1, keepdim=True)), eps)
                _write(out, rows, part, numerator.div_(denominator))
                _write(divisor, rows, part, denominator)
                if fade is None:
                    torch.baddbmm(kv, k_c.mT, v_c, out=kv_then)
                    torch.add(k_sum, nk_c.sum(1)[..., None], out=k_sum_then)
                else:
                    torch.mul(kv, fade.whole, out=kv_then).baddbmm_(k_c.mT, v_c * fade.until)
                    torch.mul(k_sum, fade.whole, out=k_sum_then).baddbmm_(nk_c.mT, fade.until)
        if keep:
            ctx.save_for_backward(q, k, v, norm_q, norm_k, log_decay, out, divisor, kvs, k_sums)
            ctx.plan, ctx.breaks = plan, breaks
        last = len(plan.parts) % slots
        # Copies: a view would keep every chunk's sums alive.
        kv, k_sum = kvs[last].clone(), k_sums[last, ..., 0].clone()
        ctx.mark_non_differentiable(kv, k_sum)
        return out, kv, k_sum

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, norm_q, norm_k, log_decay, out, divisor, kvs, k_sums = ctx.saved_tensors
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        grad_nq = grad_nk = None
        if norm_q is not None:
            grad_nq, grad_nk = torch.empty_like(norm_q), torch.empty_like(norm_k)
        for rows in ctx.plan.groups:
            # Σ q gᵀ and Σ q h over the chunks behind, as this one's end sees them.
            later_kv = torch.zeros_like(kvs[0, rows].flatten(0, 1))
            later_k = torch.zeros_like(k_sums[0, rows].flatten(0, 1))
            for i in reversed(range(len(ctx.plan.parts))):
                part = ctx.plan.parts[i]
                within, fade = ctx.plan.weights[part.stop - part.start]
                kv, k_sum = (x[i, rows].flatten(0, 1) for x in (kvs, k_sums))
                q_c, k_c, v_c, o_c, d_c, g_c = (
                    _heads_first(x, rows, part) for x in (q, k, v, out, divisor, grad_out)
                )
                # Through the division: to the numerator, and to the normaliser.
                g_c = g_c / d_c
                h_c = -(g_c * o_c).sum(-1, keepdim=True)
                to_pairs, to_k = torch.bmm(g_c, v_c.mT), torch.bmm(v_c, later_kv.mT)
                nq_c = q_c
                if grad_nq is None or grad_nk is None:
                    to_pairs += h_c
                    to_k += later_k.mT
                else:
                    nq_c, nk_c = (_by_head(x, rows, part) for x in (norm_q, norm_k))
                    to_norm, to_nq, to_nk = h_c * within, h_c * k_sum.mT, later_k.mT
                    if fade is not None:
                        to_nq, to_nk = to_nq * fade.since, to_nk * fade.until
                    _write(grad_nq, rows, part, to_nq.baddbmm_(to_norm, nk_c))
                    _write(grad_nk, rows, part, torch.baddbmm(to_nk, to_norm.mT, nq_c))
                to_pairs *= within
                pairs = torch.bmm(q_c, k_c.mT).mul_(within)
                to_v = torch.bmm(k_c, later_kv)
                if fade is not None:
                    to_v *= fade.until
                _write(grad_v, rows, part, to_v.baddbmm_(pairs.mT, g_c))
                if fade is not None:
                    g_c, h_c = g_c * fade.since, h_c * fade.since
                    to_k *= fade.until
                    later_kv *= fade.whole
                    later_k *= fade.whole
                _write(grad_k, rows, part, to_k.baddbmm_(to_pairs.mT, q_c))
                to_q = torch.bmm(g_c, kv.mT)
                if norm_q is None:
                    to_q.addcmul_(h_c, k_sum.mT)
                _write(grad_q, rows, part, to_q.baddbmm_(to_pairs, k_c))
                later_kv.baddbmm_(q_c.mT, g_c)
                later_k.baddbmm_(nq_c.mT, h_c)
                if part.start in ctx.breaks:
                    factor = ctx.breaks[part.start][rows].flatten(0, 1)[..., None]
                    later_kv *= factor
                    later_k *= factor
        grad_decay = None
        if log_decay is not None and ctx.needs_input_grad[5]:
            # Every pair's gradient times n − m: Σ_m of a pair's is q·∂q, Σ_n is k·∂k.
            # Large terms cancel: in fp64, which Apple's GPUs do not have.
            precise = torch.float32 if q.device.type == "mps" else torch.float64
            n = torch.arange(1, q.shape[1] + 1, device=q.device, dtype=precise)
            flow = _flow(q, grad_q, precise) - _flow(k, grad_k, precise)  # [B, L, H]
            if grad_nq is not None and grad_nk is not None:
                flow += _flow(norm_q, grad_nq, precise) - _flow(norm_k, grad_nk, precise)
            grad_decay = torch.einsum("l,blh->h", n, flow).to(log_decay.dtype)
        return grad_q, grad_k, grad_v, grad_nq, grad_nk, grad_decay, None, None, None, None, None


def _flow(x: Tensor, grad: Tensor, dtype: torch.dtype) -> Tensor:
    return (x * grad).sum(-1).to(dtype)


def _by_head(x: Tensor, rows: slice, part: slice) -> Tensor:
    """These rows' and tokens' [B, T, H, ·] as [B·H, T, ·]."""
    return x[rows, part].transpose(1, 2).flatten(0, 1)


def _heads_first(x: Tensor, rows: slice, part: slice) -> Tensor:
    """The same, contiguous as products like it that are many."""
    return _by_head(x, rows, part).contiguous()


def _write(to: Tensor, rows: slice, part: slice, x: Tensor) -> None:
    """[B·H, T, ·] into these rows and tokens of [B, L, H, ·]."""
    to[rows, part] = x.unflatten(0, (-1, to.shape[2])).transpose(1, 2)
