"""Causal linear attention: out_n = Σ_{m≤n} (q_n·k_m) v_m / (Σ_{m≤n} q_n·k_m + ε)."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

CHUNK = 128


class LinearState(NamedTuple):
    """The sums over the tokens so far, of a size that does not depend on their number."""

    kv: Tensor  # [B, H, E, V]: Σ k vᵀ
    k: Tensor  # [B, H, E]: Σ k

    def select(self, rows: Tensor) -> LinearState:
        """The states of the given rows, which may repeat."""
        return LinearState(self.kv[rows], self.k[rows])

    @staticmethod
    def cat(states: list[LinearState]) -> LinearState:
        """Rows of several states, one after the other."""
        kvs, ks = zip(*states, strict=True)
        return LinearState(torch.cat(kvs), torch.cat(ks))


def causal_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None = None,
    key_mask: Tensor | None = None,
    state: LinearState | None = None,
    return_state: bool = False,
    eps: float = 1e-6,
    backend: str = "auto",
) -> tuple[Tensor, LinearState | None]:
    """Causal linear attention (Katharopoulos et al. 2020, eqs. 8–9), in fp32 or fp64.

    Args:
        q, k: feature maps of queries and keys, [B, L, H, E].
        v: values, [B, L, H, V].
        log_decay: [H], not above 0: the pair (n, m) weighs exp(log_decay · (n − m)), in the
            numerator and in the normaliser.
        key_mask: [B, L], false where a key is left out.
        state: sums over the tokens before these. No gradient reaches it.
        return_state: also return the sums after these tokens.
        eps: added to the normaliser.
        backend: `naive` (quadratic, for reading and testing) or `chunked`; `auto` picks chunked.

    Returns:
        [B, L, H, V] and the state, None unless asked for.
    """
    if key_mask is not None:
        k = k * key_mask[:, :, None, None]
    compute = {"auto": _chunked, "chunked": _chunked, "naive": _naive}[backend]
    with torch.autocast(q.device.type, enabled=False):
        q, k, v = (_at_least_fp32(x) for x in (q, k, v))
        rate = None if log_decay is None else log_decay.to(q.dtype)
        out, last = compute(q, k, v, rate, state, eps)
    return out, last if return_state else None


def linear_attention_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: LinearState,
    *,
    log_decay: Tensor | None = None,
    eps: float = 1e-6,
) -> tuple[Tensor, LinearState]:
    """One token more, [B, 1, H, ·]: a rank-1 update of the state, constant in L."""
    q, k, v = (_at_least_fp32(x)[:, 0] for x in (q, k, v))  # [B, H, ·]
    kv, k_sum = state
    if log_decay is not None:
        gamma = log_decay.to(q.dtype).exp()[:, None]
        kv, k_sum = kv * gamma[..., None], k_sum * gamma
    state = LinearState(kv + k[..., None] * v[..., None, :], k_sum + k)
    numerator = (q[..., None, :] @ state.kv)[..., 0, :]  # [B, H, V]
    denominator = (q * state.k).sum(-1, keepdim=True) + eps
    return (numerator / denominator)[:, None], state


def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None, eps: float = 1e-6
) -> Tensor:
    """Bidirectional linear attention: every token sees every unmasked key. Shapes as above."""
    if key_mask is not None:
        k = k * key_mask[:, :, None, None]
    with torch.autocast(q.device.type, enabled=False):
        q, k, v = (_at_least_fp32(x) for x in (q, k, v))
        kv = torch.einsum("blhe,blhv->bhev", k, v)
        numerator = torch.einsum("blhe,bhev->blhv", q, kv)
        denominator = torch.einsum("blhe,bhe->blh", q, k.sum(1)) + eps
    return numerator / denominator[..., None]


def _at_least_fp32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    state: LinearState | None,
    eps: float,
) -> tuple[Tensor, LinearState]:
    length = q.shape[1]
    n = torch.arange(length, device=q.device)
    rate = q.new_zeros(q.shape[2]) if log_decay is None else log_decay
    decay = (rate[:, None, None] * (n[:, None] - n).clamp(min=0)).exp()  # [H, L, L]
    weights = torch.einsum("bnhe,bmhe->bhnm", q, k).tril() * decay
    numerator = torch.einsum("bhnm,bmhv->bnhv", weights, v)
    denominator = weights.sum(-1).transpose(1, 2)  # [B, L, H]
    k = k * (rate * (length - 1 - n)[:, None]).exp()[..., None]  # as the last token sees them
    kv, k_sum = torch.einsum("blhe,blhv->bhev", k, v), k.sum(1)
    if state is not None:
        since = (rate * (n + 1)[:, None]).exp()[..., None]  # [L, H, 1]
        numerator = numerator + torch.einsum("blhe,bhev->blhv", q * since, state.kv)
        denominator = denominator + torch.einsum("blhe,bhe->blh", q * since, state.k)
        whole = (rate * length).exp()[:, None]
        kv, k_sum = kv + state.kv * whole[..., None], k_sum + state.k * whole
    return numerator / (denominator[..., None] + eps), LinearState(kv, k_sum)


def _chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    state: LinearState | None,
    eps: float,
) -> tuple[Tensor, LinearState]:
    first = None if state is None else torch.cat((state.kv, state.k[..., None]), dim=-1)
    out, last = _Chunked.apply(q, k, v, log_decay, first, eps)
    return out, LinearState(last[..., :-1], last[..., -1])


class _Decay(NamedTuple):
    """The powers of γ that a chunk of T tokens needs, each at most 1."""

    within: Tensor  # [H, T, T]: γ^(n − m) for m ≤ n, else 0
    since: Tensor  # [H, T, 1]: γ^(n + 1), from the chunk before to token n
    until: Tensor  # [H, T, 1]: γ^(T − 1 − m), from token m to the chunk's end
    whole: Tensor  # [H, 1, 1]: γ^T

    @staticmethod
    def over(length: int, log_decay: Tensor) -> _Decay:
        n = torch.arange(length, device=log_decay.device)
        rate = log_decay[:, None, None]
        within = (rate * (n[:, None] - n).clamp(min=0)).exp().tril()
        return _Decay(
            within,
            (rate * (n + 1)[:, None]).exp(),
            (rate * (length - 1 - n)[:, None]).exp(),
            (rate * length).exp(),
        )


class _Chunked(torch.autograd.Function):
    """Quadratic within chunks of T tokens, recurrent from chunk to chunk.

    Values get a column of ones, v' = [v, 1]: one product then gives numerator and denominator.
    Kept for the backward are the inputs, the output, the denominator, and the sums before each
    chunk; weights within chunks are computed again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_decay: Tensor | None,
        first: Tensor | None,
        eps: float,
    ) -> tuple[Tensor, Tensor]:
        batch, length, heads, width = q.shape
        ones = v.new_ones(batch, length, heads, 1)
        v1 = torch.cat((v, ones), dim=-1)
        state = first if first is not None else v.new_zeros(batch, heads, width, v1.shape[-1])
        out, denominator = torch.empty_like(v), torch.empty_like(ones)
        states = []
        for part, decay in _chunks(length, log_decay):
            q_c, k_c, v_c = (x[:, part].transpose(1, 2) for x in (q, k, v1))  # [B, H, T, ·]
            k_t = k_c.transpose(-1, -2)
            inner, carried = _masked(q_c @ k_t, decay), q_c @ state
            if decay is not None:
                carried *= decay.since
                k_t = (k_c * decay.until).transpose(-1, -2)
            sums = (carried + inner @ v_c).transpose(1, 2)  # [B, T, H, V + 1]
            denominator[:, part] = sums[..., -1:] + eps
            out[:, part] = sums[..., :-1] / denominator[:, part]
            states.append(state)
            state = torch.add(state if decay is None else state * decay.whole, k_t @ v_c)
        ctx.save_for_backward(q, k, v1, log_decay, out, denominator, *states)
        ctx.mark_non_differentiable(state)
        return out, state

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v1, log_decay, out, denominator, *states = ctx.saved_tensors
        # Through the division: to the numerator, and to the denominator as the last column.
        grad = grad_out / denominator
        grad = torch.cat((grad, -(grad * out).sum(-1, keepdim=True)), dim=-1)
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v1)
        later = torch.zeros_like(
            states[0]
        )  # Σ q gᵀ of the chunks behind, as this one's end sees it
        chunks = _chunks(q.shape[1], log_decay)
        for (part, decay), state in zip(reversed(chunks), reversed(states), strict=True):
            q_c, k_c, v_c, g_c = (x[:, part].transpose(1, 2) for x in (q, k, v1, grad))
            g_v = _masked(g_c @ v_c.transpose(-1, -2), decay)  # [B, H, T, T]
            q_k = _masked(q_c @ k_c.transpose(-1, -2), decay)
            from_state, to_k, to_v = g_c @ state.transpose(-1, -2), v_c @ later.mT, k_c @ later
            if decay is not None:
                from_state *= decay.since
                to_k *= decay.until
                to_v *= decay.until
                q_c = q_c * decay.since
            grad_q[:, part] = (g_v @ k_c + from_state).transpose(1, 2)
            grad_k[:, part] = (g_v.mT @ q[:, part].transpose(1, 2) + to_k).transpose(1, 2)
            grad_v[:, part] = (q_k.mT @ g_c + to_v).transpose(1, 2)
            later = torch.add(later if decay is None else later * decay.whole, q_c.mT @ g_c)
        grad_decay = None
        if log_decay is not None and ctx.needs_input_grad[3]:
            # Every pair's gradient times n − m: Σ_m of a pair's is q·∂q, Σ_n is k·∂k.
            # Large terms cancel: in fp64, which Apple's GPUs do not have.
            precise = torch.float32 if q.device.type == "mps" else torch.float64
            n = torch.arange(1, q.shape[1] + 1, device=q.device, dtype=precise)
            flow = (q * grad_q).sum(-1).to(precise) - (k * grad_k).sum(-1).to(precise)  # [B, L, H]
            grad_decay = torch.einsum("l,blh->h", n, flow).to(log_decay.dtype)
        return grad_q, grad_k, grad_v[..., :-1], grad_decay, None, None


def _masked(weights: Tensor, decay: _Decay | None) -> Tensor:
    return weights.tril_() if decay is None else weights.mul_(decay.within)


def _chunks(length: int, log_decay: Tensor | None) -> list[tuple[slice, _Decay | None]]:
    sizes = [min(CHUNK, length - start) for start in range(0, length, CHUNK)]
    decays = {n: None if log_decay is None else _Decay.over(n, log_decay) for n in set(sizes)}
    return [(slice(i * CHUNK, i * CHUNK + n), decays[n]) for i, n in enumerate(sizes)]
