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
        key_mask: [B, L], false where a key is left out.
        state: sums over the tokens before these.
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
        return compute(q, k, v, state, return_state, eps)


def linear_attention_step(
    q: Tensor, k: Tensor, v: Tensor, state: LinearState, *, eps: float = 1e-6
) -> tuple[Tensor, LinearState]:
    """One token more, [B, 1, H, ·]: a rank-1 update of the state, constant in L."""
    q, k, v = (_at_least_fp32(x)[:, 0] for x in (q, k, v))  # [B, H, ·]
    state = LinearState(state.kv + k[..., None] * v[..., None, :], state.k + k)
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
    q: Tensor, k: Tensor, v: Tensor, state: LinearState | None, return_state: bool, eps: float
) -> tuple[Tensor, LinearState | None]:
    weights = torch.einsum("bnhe,bmhe->bhnm", q, k).tril()
    numerator = torch.einsum("bhnm,bmhv->bnhv", weights, v)
    denominator = weights.sum(-1).transpose(1, 2)  # [B, L, H]
    if state is not None:
        numerator = numerator + torch.einsum("blhe,bhev->blhv", q, state.kv)
        denominator = denominator + torch.einsum("blhe,bhe->blh", q, state.k)
    out = numerator / (denominator[..., None] + eps)
    if not return_state:
        return out, None
    kv, k_sum = torch.einsum("blhe,blhv->bhev", k, v), k.sum(1)
    if state is not None:
        kv, k_sum = kv + state.kv, k_sum + state.k
    return out, LinearState(kv, k_sum)


def _chunked(
    q: Tensor, k: Tensor, v: Tensor, state: LinearState | None, return_state: bool, eps: float
) -> tuple[Tensor, LinearState | None]:
    first = None if state is None else torch.cat((state.kv, state.k[..., None]), dim=-1)
    out, last = _Chunked.apply(q, k, v, first, eps)
    return out, LinearState(last[..., :-1], last[..., -1]) if return_state else None


class _Chunked(torch.autograd.Function):
    """Quadratic within chunks of T tokens, recurrent from chunk to chunk.

    Values get a column of ones, v' = [v, 1]: one product then gives numerator and denominator.
    Kept for the backward are the inputs, the output, the denominator, and the sums before each
    chunk; weights within chunks are computed again. Gradients do not reach the first state.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, first: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor]:
        batch, length, heads, width = q.shape
        ones = v.new_ones(batch, length, heads, 1)
        v1 = torch.cat((v, ones), dim=-1)
        state = first if first is not None else v.new_zeros(batch, heads, width, v1.shape[-1])
        out, denominator = torch.empty_like(v), torch.empty_like(ones)
        states = []
        for part in _chunks(length):
            q_c, k_c, v_c = (x[:, part].transpose(1, 2) for x in (q, k, v1))  # [B, H, T, ·]
            k_t = k_c.transpose(-1, -2)
            sums = q_c @ state + (q_c @ k_t).tril_() @ v_c  # [B, H, T, V + 1]
            sums = sums.transpose(1, 2)
            denominator[:, part] = sums[..., -1:] + eps
            out[:, part] = sums[..., :-1] / denominator[:, part]
            states.append(state)
            state = state + k_t @ v_c
        ctx.save_for_backward(q, k, v1, out, denominator, *states)
        ctx.mark_non_differentiable(state)
        return out, state

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v1, out, denominator, *states = ctx.saved_tensors
        # Through the division: to the numerator, and to the denominator as the last column.
        grad = grad_out / denominator
        grad = torch.cat((grad, -(grad * out).sum(-1, keepdim=True)), dim=-1)
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v1)
        later = torch.zeros_like(states[0])  # Σ q gᵀ over the chunks behind this one
        for part, state in zip(reversed(_chunks(q.shape[1])), reversed(states), strict=True):
            q_c, k_c, v_c, g_c = (x[:, part].transpose(1, 2) for x in (q, k, v1, grad))
            g_v = (g_c @ v_c.transpose(-1, -2)).tril_()  # [B, H, T, T]
            q_k = (q_c @ k_c.transpose(-1, -2)).tril_()
            grad_q[:, part] = (g_v @ k_c + g_c @ state.transpose(-1, -2)).transpose(1, 2)
            grad_k[:, part] = (
                g_v.transpose(-1, -2) @ q_c + v_c @ later.transpose(-1, -2)
            ).transpose(1, 2)
            grad_v[:, part] = (q_k.transpose(-1, -2) @ g_c + k_c @ later).transpose(1, 2)
            later = later + q_c.transpose(-1, -2) @ g_c
        return grad_q, grad_k, grad_v[..., :-1], None, None


def _chunks(length: int) -> list[slice]:
    return [slice(start, min(start + CHUNK, length)) for start in range(0, length, CHUNK)]
