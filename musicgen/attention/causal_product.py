"""The causal product of linear attention: quadratic within chunks of tokens, sums between them.

All chunks are computed at once, in a few large operations; on a CPU, those of 2,048 tokens. There
is no loop over tokens or chunks. On GPUs and in compiled graphs no value is read back, so that a
whole training step compiles into one graph; uncompiled, a CPU reads whether a decay is mild.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from musicgen.position.base import prefers_large_operations

CHUNK_LENGTH = 128  # T, tokens in a chunk; half of it on a CPU, whose caches are small
_PART_LENGTH = 2048  # tokens that a CPU computes at once: new memory for more takes longer
# Largest −log of a chunk's decay of which half is in its queries and half in its keys: exponents of
# features, ±30 at most, stay in the range of fp32.
_MILD = 50.0
_GROUP_SIZE = 64  # chunks whose running sums are one matrix product

NormFeatures = tuple[Tensor, Tensor]
"""Features of queries and keys for the normaliser alone, [B, L, H, M] each."""


class LinearState(NamedTuple):
    """Sums over the tokens so far; their size does not depend on the number of tokens."""

    kv: Tensor  # [B, H, E, V]: Σ k vᵀ
    k: Tensor  # [B, H, M]: Σ k of the normaliser's features; M = E unless they are encoded
    log_scale: Tensor | None = None  # [B, H, E|1]: sums = stored sums · exp(log_scale); None: 0

    def scaled(self, factor: Tensor) -> LinearState:
        """Return the sums times a factor [B, H, E|1]."""
        return LinearState(self.kv * factor[..., None], self.k * factor, self.log_scale)


def normaliser(denominator: Tensor, eps: float | None) -> Tensor:
    """Return the divisor of attention: the sign of `denominator`, its magnitude plus `eps`.

    Zeros become ones, so that a query without keys gets 0 instead of 0 / 0. None: the denominator
    is at least 0, and tiny ones become 1, too, as their gradients would overflow.
    """
    if eps is None:
        return denominator + (denominator < 1e3 * torch.finfo(denominator.dtype).tiny)
    if eps:
        return torch.where(denominator < 0, denominator - eps, denominator + eps)
    return denominator + (denominator == 0)


def causal_product(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    norm: NormFeatures | None,
    log_decay: Tensor | None,
    state: LinearState | None,
    *,
    dtype: torch.dtype,
    eps: float | None,
    return_state: bool,
) -> tuple[Tensor, LinearState | None]:
    """Return the product [B, L, H, V], in time linear in length, and the state if requested.

    Args:
        q, k, v: [B, L, H, E], [B, L, H, E] and [B, L, H, V].
        norm: the normaliser's features; None: q and k.
        log_decay, state, return_state: as in `causal_linear_attention`.
        dtype: of products within chunks.
        eps: see `normaliser`.
    """
    if q.shape[1] <= _PART_LENGTH or prefers_large_operations(q.device):
        return _product(
            q, k, v, norm, log_decay, state, dtype=dtype, eps=eps, return_state=return_state
        )
    outputs: list[Tensor] = []
    for part in token_parts((q, k, v, norm, log_decay), _PART_LENGTH):
        more = return_state or (len(outputs) + 1) * _PART_LENGTH < q.shape[1]
        arguments = *part, state
        out, state = _product(*arguments, dtype=dtype, eps=eps, return_state=more)
        outputs.append(out)
    return torch.cat(outputs, dim=1), state


def token_parts(tensors: Iterable[Any], sizes: int | list[int]) -> Iterator[tuple[Any, ...]]:
    """Yield the parts of tensors [B, L, ...], or of pairs of them, by `torch.split`.

    None and what is the same at all tokens, [H], belong to each part.
    """

    def parts(x: Any) -> Iterable[Any]:
        if isinstance(x, tuple):
            return token_parts(x, sizes)
        return repeat(x) if x is None or x.dim() == 1 else x.split(sizes, dim=1)

    return zip(*map(parts, tensors), strict=False)


def _product(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    norm: NormFeatures | None,
    log_decay: Tensor | None,
    state: LinearState | None,
    *,
    dtype: torch.dtype,
    eps: float | None,
    return_state: bool,
) -> tuple[Tensor, LinearState | None]:
    """Return the product of all chunks at once; for the arguments, see `causal_product`."""
    length, large = q.shape[1], prefers_large_operations(q.device)
    size = CHUNK_LENGTH if large else CHUNK_LENGTH // 2
    q, k, v = (_by_chunk(x, size).to(dtype) for x in (q, k, v))
    norm_q, norm_k = (q, k) if norm is None else (_by_chunk(x, size).to(dtype) for x in norm)
    sums = None if log_decay is None else _decay_sums(log_decay, length, size)
    arguments = q, k, v, (norm_q, norm_k), sums, state, eps
    last: LinearState | None
    by_token = log_decay is not None and log_decay.dim() == 3
    if not large and (sums is None or ((by_token or norm is None) and _is_mild(sums))):
        out, last = _product_on_cpu(*arguments)
    else:
        out, last = _weighted_product(*arguments, by_token, return_state)
    return out.flatten(2, 3)[:, :, :length].transpose(1, 2), last if return_state else None


def _weighted_product(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    norm: NormFeatures,
    decay_sums: Tensor | None,
    state: LinearState | None,
    eps: float | None,
    by_token: bool,
    return_state: bool,
) -> tuple[Tensor, LinearState | None]:
    """Return the output by chunks and the state; the decay multiplies products of pairs.

    Args:
        q, k, v, norm: by chunks, [B, H, C, T, ·].
        decay_sums: see `_decay_sums`.
        by_token: whether chunks differ in their decay.
    """
    sum_dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    norm_q, norm_k = norm
    within, chunk_decay, to_v, to_norm_k = None, None, v, norm_k
    if decay_sums is not None:
        chunk_decay = decay_sums[..., -1]
        within, from_start, to_end = _decay_factors(decay_sums, sum_dtype, by_token)
        to_v, to_norm_k = (x * to_end[..., None].to(x.dtype) for x in (v, norm_k))

    kv = (k.mT @ to_v).to(sum_dtype)  # Σ k vᵀ of each chunk: [B, H, C, E, V]
    k_sums = to_norm_k.sum(-2, dtype=sum_dtype)  # [B, H, C, M]
    first = None if state is None else (state.kv.flatten(-2), state.k)
    kv_before, k_before = _sums_before((kv.flatten(-2), k_sums), chunk_decay, first)
    kv_before = kv_before.view_as(kv)

    pairs = _masked(q @ k.mT, within)  # [B, H, C, T, T]
    norm_pairs = pairs if norm_q is q else _masked(norm_q @ norm_k.mT, within)
    from_before = q @ kv_before.to(q.dtype)  # [B, H, C, T, V]
    norm_from_before = (norm_q @ k_before[..., None].to(q.dtype)).squeeze(-1).to(sum_dtype)
    if decay_sums is not None:
        from_before = from_before * from_start[..., None].to(q.dtype)
        norm_from_before = norm_from_before * from_start
    numerator = torch.baddbmm(*(x.flatten(0, 2) for x in (from_before, pairs, v))).view_as(v)
    denominator = norm_pairs.sum(-1, dtype=sum_dtype) + norm_from_before
    out = (numerator.to(sum_dtype) / normaliser(denominator, eps)[..., None]).to(q.dtype)
    if not return_state:
        return out, None
    last_kv, last_k = kv_before[:, :, -1], k_before[:, :, -1]
    if chunk_decay is not None:
        decay = chunk_decay[..., -1, None].exp().to(sum_dtype)
        last_kv, last_k = decay[..., None] * last_kv, decay * last_k
    return out, LinearState(last_kv + kv[:, :, -1], last_k + k_sums[:, :, -1])


def _product_on_cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    norm: NormFeatures,
    decay_sums: Tensor | None,
    state: LinearState | None,
    eps: float | None,
) -> tuple[Tensor, LinearState]:
    """Return the same; half of a chunk's mild decay multiplies its queries, half its keys."""
    one_kind = norm[0] is q
    if decay_sums is None:
        weights = q.new_ones(q.shape[2] + 1, q.shape[2] + 1).tril()
    else:
        last = decay_sums[..., -1]
        half = last / 2
        log_share = decay_sums - half[..., None]
        of_q, of_k = (x.exp().to(q.dtype)[..., None] for x in (log_share, -log_share))
        q, k, (norm_q, norm_k) = q * of_q, k * of_k, norm
        norm = (q, k) if one_kind else (norm_q * of_q, norm_k * of_k)
        before = F.pad(last, (1, 0)).cumsum(-1)  # from the start up to each chunk
        weights = _pair_weights(before + F.pad(half, (0, 1)), before - F.pad(half, (1, 0)), q.dtype)
    kv, k_sum = (None, None) if state is None else (state.kv, state.k[..., None])
    if one_kind:
        first = None if kv is None or k_sum is None else torch.cat((kv, k_sum), dim=-1)
        numerator, denominator, sums = _ChunkSums.apply(q, k, v, weights, first)
        kv, k_sum = sums[..., :-1], sums[..., -1]
    else:
        first = None if kv is None else F.pad(kv, (0, 1))
        numerator, _, sums = _ChunkSums.apply(q, k, v, weights, first)
        _, denominator, k_sums = _ChunkSums.apply(*norm, v[..., :0], weights, k_sum)
        kv, k_sum = sums[..., :-1], k_sums[..., 0]
    divisor = normaliser(denominator, eps)
    return _Quotient.apply(numerator, divisor[..., None]), LinearState(kv, k_sum)


def _chunk_sums(
    q: Tensor, k: Tensor, v: Tensor, weights: Tensor, first: Tensor | None
) -> tuple[Tensor, ...]:
    """Return values with a column of ones, pairs, the sums of and before chunks, and the last."""
    v = torch.cat((v, v.new_ones(*v.shape[:-1], 1)), dim=-1)
    kv = k.mT @ v
    sums = weights[..., 1:] @ kv.flatten(-2)
    if first is not None:
        sums = sums + weights[..., :1] * first.flatten(-2)[:, :, None]
    sums = sums.unflatten(-1, kv.shape[-2:])
    return v, (q @ k.mT).tril_(), kv, sums[:, :, :-1].contiguous(), sums[:, :, -1]


class _ChunkSums(torch.autograd.Function):
    """Numerators and denominators of all chunks, and the sums after them.

    The backward pass is little but matrix products, which are added in place: torch's takes half as
    long again on a CPU.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, weights: Tensor, first: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return numerators [B, H, C, T, V], denominators [B, H, C, T] and sums [B, H, E, V + 1].

        Args:
            q, k, v: [B, H, C, T, ·].
            weights: [.., C + 1, C + 1], those of `first` and of the sums of the chunks in the sums
                before the chunks and in the last ones.
            first: sums before the tokens, [B, H, E, V + 1]; the last column is that of Σ k.
        """
        *parts, last = _chunk_sums(q, k, v, weights, first)
        ctx.save_for_backward(q, k, v, weights, first, *parts)
        ones, pairs, _, before = parts
        out = _added(q @ before, pairs, ones)
        return out[..., :-1], out[..., -1], last

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, v, pairs, kv, before = ctx.saved_tensors
        if torch.is_grad_enabled():  # second derivatives
            v, pairs, kv, before, _ = _chunk_sums(*inputs)
        q, k, _, weights, first = inputs
        grad = torch.cat((gradients[0], gradients[1][..., None]), dim=-1)
        grad_sums = torch.cat((q.mT @ grad, gradients[2][:, :, None]), dim=2).flatten(-2)
        grad_kv = (weights[..., 1:].mT @ grad_sums).view_as(kv)
        grad_pairs = (grad @ v.mT).tril_()
        grad_q = _added(grad @ before.mT, grad_pairs, k)
        grad_k = _added(v @ grad_kv.mT, grad_pairs.mT, q)
        grad_v = _added(k @ grad_kv[..., :-1], pairs.mT, gradients[0])
        grad_weights = grad_first = None
        if ctx.needs_input_grad[3]:
            start = torch.zeros_like(kv[:, :, :1]) if first is None else first[:, :, None]
            sums = torch.cat((start, kv), dim=2).flatten(-2)
            grad_weights = (grad_sums @ sums.mT).sum_to_size(weights.shape)
        if ctx.needs_input_grad[4]:
            grad_first = (weights[..., :1].mT @ grad_sums).view_as(first)
        return grad_q, grad_k, grad_v, grad_weights, grad_first


class _Quotient(torch.autograd.Function):
    """x / y for x [.., V] and y [.., 1]; its backward pass takes half the time of torch's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        out = x / y
        ctx.save_for_backward(y, out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        y, out = ctx.saved_tensors
        grad = gradients[0] / y
        return grad, -(grad * out).sum(-1, keepdim=True)


def _added(total: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Add a b to the total, in place; each is [B, H, C, ·, ·]."""
    total.flatten(0, 2).baddbmm_(a.flatten(0, 2), b.flatten(0, 2))
    return total


def _by_chunk(x: Tensor, size: int) -> Tensor:
    """Return [B, L, H, ·] by chunks, padded with zeros: [B, H, C, T, ·], contiguous."""
    if missing := -x.shape[1] % size:
        x = F.pad(x.transpose(1, 2), (0, 0, 0, missing)).transpose(1, 2)
    return x.unflatten(1, (-1, size)).permute(0, 3, 1, 2, 4).contiguous()


def _decay_sums(log_decay: Tensor, length: int, size: int) -> Tensor:
    """Return the logarithm of the decay from the chunk before to each token: [1|B, H, C, T].

    In high precision, as differences of long sums are taken. Apple's GPUs have no fp64.
    """
    rates = log_decay if log_decay.dim() == 3 else log_decay.expand(1, length, -1)
    rates = _by_chunk(rates[..., None], size)[..., 0]
    return rates.to(torch.float32 if rates.device.type == "mps" else torch.float64).cumsum(-1)


def _is_mild(decay_sums: Tensor) -> bool:
    """Return whether queries and keys can be multiplied by a chunk's decay, instead of pairs."""
    return bool((decay_sums[..., -1] >= -_MILD).all())


def _decay_factors(
    sums: Tensor, dtype: torch.dtype, by_token: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the decay factors of the chunks, each at most 1.

    Returns:
        Weights of the pairs of a chunk [1|B, H, C|1, T, T]. Decay from the chunk before to each
        token, and from each token to the end of its chunk, [1|B, H, C, T].
    """
    own = sums if by_token else sums[:, :, :1]
    within = _pair_weights(own, own, dtype)
    from_start, to_end = (x.to(dtype).exp() for x in (sums, sums[..., -1:] - sums))
    return within, from_start, to_end


def _masked(pairs: Tensor, weights: Tensor | None) -> Tensor:
    """Return the products of pairs, weighted, and 0 where m > n."""
    return pairs.tril() if weights is None else pairs * weights.to(pairs.dtype)


def _pair_weights(until: Tensor, since: Tensor, dtype: torch.dtype) -> Tensor:
    """Return exp(until_n − since_m), 0 where m > n: [.., N] -> [.., N, N]."""
    differences = (until[..., :, None] - since[..., None, :]).to(dtype)
    n = torch.arange(until.shape[-1], device=until.device)
    # Masked before the exponential, which could overflow for m > n.
    return differences.masked_fill(n > n[:, None], -torch.inf).exp()


def _sums_before(
    sums: Sequence[Tensor], log_decay: Tensor | None, first: Sequence[Tensor] | None
) -> list[Tensor]:
    """Return the decayed sums before each chunk, S_n = γ_{n−1} S_{n−1} + x_{n−1}: [B, H, C, X].

    Args:
        sums: several x, the sums of the chunks, [B, H, C, X].
        log_decay: log γ, [1|B, H, C]; None: 0.
        first: their S_0, [B, H, X]; None: 0.
    """
    count = sums[0].shape[2]
    size = min(count, _GROUP_SIZE)
    if count > size:  # sums within groups, whose totals are summed the same way: in linear time
        missing = -count % size
        sums = [F.pad(x, (0, 0, 0, missing)).unflatten(2, (-1, size)) for x in sums]
        if log_decay is not None:
            log_decay = F.pad(log_decay, (0, missing)).unflatten(-1, (-1, size))  # [.., G, 64]
    # Row n: weights of the sum before all chunks, and of the chunks, in the sum before chunk n.
    if log_decay is None:
        weights = sums[0].new_ones(size + 1, size + 1).tril()
    else:
        decays = F.pad(log_decay, (1, 0)).cumsum(-1)
        weights = _pair_weights(decays, decays, sums[0].dtype)
    before = [weights[..., :-1, 1:] @ x for x in sums]
    if count > size:
        totals = [(weights[..., -1:, 1:] @ x)[..., 0, :] for x in sums]
        total_decay = None if log_decay is None else log_decay.sum(-1)
        first = _sums_before(totals, total_decay, first)
    if first is not None:
        from_start = weights[..., :-1, :1]
        before = [x + from_start * s[..., None, :] for x, s in zip(before, first, strict=True)]
    return [x.flatten(2, 3)[:, :, :count] for x in before] if count > size else before
