"""The causal product in a few large operations: all chunks at once, sums between them in fp32.

This backend is for accelerators. It has no loop over tokens or chunks and reads no value back, so
that a whole training step compiles into one graph. The backend for CPUs is in `chunked.py`.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from musicgen.attention.linear.chunked import precise
from musicgen.attention.linear.state import LinearState, ProductInputs, normaliser

CHUNK_LENGTH = 128  # T, tokens in a chunk, whose pairs are all computed
_GROUP_SIZE = 64  # chunks whose running sums are one matrix product


def batched(inputs: ProductInputs) -> tuple[Tensor, LinearState | None]:
    """Return the product [B, L, H, V], in time linear in length, and the state if requested.

    Within a chunk, masked products of all pairs are computed in `inputs.dtype`. Tokens before a
    chunk act through the decayed sum of k vᵀ, [E, V].
    """
    norm, state, dtype, eps = inputs.norm, inputs.state, inputs.dtype, inputs.eps
    length = inputs.q.shape[1]
    decay = None if inputs.log_decay is None else _ChunkDecay(inputs.log_decay, length)
    q, k, v = (_by_chunk(x).to(dtype) for x in (inputs.q, inputs.k, inputs.v))
    norm_q, norm_k = (q, k) if norm is None else (_by_chunk(x).to(dtype) for x in norm)
    first_kv, first_k = (None, None) if state is None else (state.kv.flatten(-2), state.k)

    kv, k_sums = _sums_of_chunks(k, v, norm_k, decay)
    totals = None if decay is None else decay.total
    running = _RunningSums(kv.shape[2], totals, like=k_sums)
    kv_before = running.before(kv.flatten(-2), first_kv).unflatten(-1, kv.shape[-2:])
    k_before = running.before(k_sums, first_k)

    pairs = _masked_pairs(q, k, decay)
    norm_pairs = pairs if norm is None else _masked_pairs(norm_q, norm_k, decay)
    from_before = q @ kv_before.to(dtype)  # [B, H, C, T, V]
    norm_from_before = (norm_q @ k_before[..., None].to(dtype))[..., 0].to(k_sums.dtype)
    if decay is not None:
        from_before = from_before * decay.from_start[..., None].to(dtype)
        norm_from_before = norm_from_before * decay.from_start
    numerator = torch.baddbmm(*(x.flatten(0, 2) for x in (from_before, pairs, v)))
    numerator = numerator.view_as(v).to(k_sums.dtype)
    denominator = norm_pairs.sum(-1, dtype=k_sums.dtype) + norm_from_before
    # Gradients of smaller normalisers would overflow. A query whose features all vanish gets 0.
    smallest = 1e3 * torch.finfo(denominator.dtype).tiny
    divisor = normaliser(denominator, eps) if eps else denominator + smallest
    out = (numerator / divisor[..., None]).to(dtype)
    out = out.flatten(2, 3)[:, :, :length].transpose(1, 2)
    if not inputs.return_state:
        return out, None
    last_kv = running.last(kv.detach().flatten(-2), first_kv).unflatten(-1, kv.shape[-2:])
    return out, LinearState(last_kv, running.last(k_sums.detach(), first_k))


class _ChunkDecay:
    """Decay factors within and around each chunk, at most 1: [1|B, H, C|1, T] each."""

    def __init__(self, log_decay: Tensor, length: int) -> None:
        if log_decay.dim() == 1:  # the same at all tokens
            log_decay = log_decay.expand(1, length, -1)
        rates = _by_chunk(log_decay[..., None])[..., 0]
        # In high precision, as differences of long sums are taken.
        sums = rates.to(precise(rates)).cumsum(-1)
        self.dtype, self.sums = log_decay.dtype, sums
        self.from_start = sums.to(self.dtype).exp()  # from the chunk before to token n
        self.to_end = (sums[..., -1:] - sums).to(self.dtype).exp()  # from token m to the end
        self.total = sums[..., -1]  # logarithm of the whole chunk's decay: [1|B, H, C]

    def within(self) -> Tensor:
        """Return the weights of a chunk's pairs, 0 where m > n: [1|B, H, C, T, T]."""
        return _pair_weights(self.sums, self.dtype)


def _pair_weights(sums: Tensor, dtype: torch.dtype) -> Tensor:
    """Return exp(sums_n − sums_m), 0 where m > n: [.., N] -> [.., N, N]."""
    differences = (sums[..., :, None] - sums[..., None, :]).to(dtype)
    n = torch.arange(sums.shape[-1], device=sums.device)
    # Masked before the exponential, which could overflow for m > n.
    return differences.masked_fill(n > n[:, None], -torch.inf).exp()


def _by_chunk(x: Tensor) -> Tensor:
    """Return [B, L, H, ·] by chunks, padded with zeros: [B, H, C, T, ·], contiguous."""
    if missing := -x.shape[1] % CHUNK_LENGTH:
        x = F.pad(x, (0, 0, 0, 0, 0, missing))
    x = x.unflatten(1, (-1, CHUNK_LENGTH))
    return x.permute(0, 3, 1, 2, 4).contiguous()


def _masked_pairs(q: Tensor, k: Tensor, decay: _ChunkDecay | None) -> Tensor:
    """Return the weighted products of the pairs within chunks: [B, H, C, T, T]."""
    pairs = q @ k.mT
    return pairs.tril() if decay is None else pairs * decay.within().to(pairs.dtype)


def _sums_of_chunks(
    k: Tensor, v: Tensor, norm_k: Tensor, decay: _ChunkDecay | None
) -> tuple[Tensor, Tensor]:
    """Return Σ k vᵀ and Σ k of each chunk, decayed to its end: [B, H, C, E, V], [B, H, C, M]."""
    precise_sums = torch.float64 if k.dtype == torch.float64 else torch.float32
    if decay is not None:
        to_end = decay.to_end[..., None].to(k.dtype)
        v, norm_k = v * to_end, norm_k * to_end
    return (k.mT @ v).to(precise_sums), norm_k.sum(-2, dtype=precise_sums)


class _RunningSums:
    """Running sums over chunks with a decay, S_n = γ_n S_{n−1} + x_n, by matrix products.

    Args:
        count: C, number of chunks.
        log_decay: log γ, [1|B, 1|H, C]; None: 0.
        like: a tensor of the sums' dtype, on their device.
    """

    def __init__(self, count: int, log_decay: Tensor | None, like: Tensor) -> None:
        self.count, dtype = count, like.dtype
        self.outer: _RunningSums | None = None
        if log_decay is None and count <= _GROUP_SIZE:
            self.weights = like.new_ones(1, 1, count + 1, count + 1).tril()
            return
        log_decay = like.new_zeros(1, 1, count) if log_decay is None else log_decay
        if self.count > _GROUP_SIZE:  # groups, whose totals are summed the same way: linear time
            log_decay = F.pad(log_decay, (0, -self.count % _GROUP_SIZE))
            log_decay = log_decay.unflatten(-1, (-1, _GROUP_SIZE))  # [.., G, 64]
        sums = F.pad(log_decay, (1, 0)).cumsum(-1)
        # Row i: weights of the first sum and of each chunk in the sum before chunk i. The last row
        # is the sum after all chunks.
        self.weights = _pair_weights(sums, dtype)  # [.., C + 1, C + 1]
        if self.count > _GROUP_SIZE:
            self.from_start = sums[..., :-1].to(dtype).exp()  # from the group's start: [.., G, 64]
            self.outer = _RunningSums(sums.shape[-2], sums[..., -1], like)

    def before(self, x: Tensor, first: Tensor | None) -> Tensor:
        """Return the sum before each chunk: [B, H, C, X].

        Args:
            x: sums of the chunks [B, H, C, X].
            first: the sum before all chunks [B, H, X]; None: 0.
        """
        if self.outer is None:
            x, weights = self._with_first(x, first)
            return weights[..., :-1, :] @ x
        groups = self._grouped(x)
        before = self.outer.before(self._totals(groups), first)  # [B, H, G, X]
        sums = (
            self.weights[..., :-1, 1:] @ groups + self.from_start[..., None] * before[..., None, :]
        )
        return sums.flatten(2, 3)[:, :, : self.count]

    def last(self, x: Tensor, first: Tensor | None) -> Tensor:
        """Return the sum after the last chunk, [B, H, X]; for the arguments, see `before`."""
        if self.outer is None:
            x, weights = self._with_first(x, first)
            return (weights[..., -1:, :] @ x)[:, :, 0]
        return self.outer.last(self._totals(self._grouped(x)), first)

    def _with_first(self, x: Tensor, first: Tensor | None) -> tuple[Tensor, Tensor]:
        if first is None:
            return x, self.weights[..., 1:]
        return torch.cat((first[:, :, None], x), dim=2), self.weights

    def _grouped(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, 0, -self.count % _GROUP_SIZE)).unflatten(2, (-1, _GROUP_SIZE))

    def _totals(self, groups: Tensor) -> Tensor:
        return (self.weights[..., -1:, 1:] @ groups)[..., 0, :]
