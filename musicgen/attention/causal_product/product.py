"""The public functions: causal, step by step, bidirectional."""

from __future__ import annotations

import torch
from torch import Tensor

from musicgen.attention.causal_product.kernels import choose
from musicgen.attention.causal_product.stabilise import stabilise, stabilise_all, stabilise_step
from musicgen.attention.causal_product.state import Breaks, LinearState, Norm, normaliser
from musicgen.position.base import LayerCode


def causal_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_features: bool = False,
    log_decay: Tensor | None = None,
    code: LayerCode | None = None,
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
        log_features: q and k are the logarithms of positive features, which may be of any size.
        log_decay: [H], not above 0: the pair (n, m) weighs exp(log_decay · (n − m)), in the
            numerator and in the normaliser.
        code: encodes q and k once they are in range, in place of a caller who would have to know
            their exponents' scale. Where it does not keep their signs, the normaliser is taken
            of q and k as they are.
        key_mask: [B, L], false where a key is left out.
        state: sums over the tokens before these. No gradient reaches it.
        return_state: also return the sums after these tokens.
        eps: added to the normaliser; not with `log_features`, which need none.
        backend: `naive` (quadratic, for reading and testing), `chunked` (any device),
            `fast_transformers`, `fla` (NVIDIA; in TF32), or `auto`: the fastest that is right.

    Returns:
        [B, L, H, V] and the state, None unless asked for.

    Raises:
        UserError: the backend is unknown, not installed, or cannot do what is asked.
    """
    compute = choose(backend, q, log_decay)
    with torch.autocast(q.device.type, enabled=False):
        q, k, v = (_at_least_fp32(x) for x in (q, k, v))
        rate = None if log_decay is None else log_decay.to(q.dtype)
        breaks: Breaks = {}
        log_scale = None
        if log_features:
            per_head = code is not None
            q, k, breaks, log_scale = stabilise(q, k, key_mask, rate, state, per_head)
            eps = 0
        elif key_mask is not None:
            k = k * key_mask[:, :, None, None]
        norm = None
        if code is not None:
            q, k, norm = _encode(q, k, code)
        out, last = compute(q, k, v, norm, rate, state, breaks, eps)
    return out, last._replace(log_scale=log_scale) if return_state else None


def linear_attention_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: LinearState,
    *,
    log_decay: Tensor | None = None,
    code: LayerCode | None = None,
    eps: float = 1e-6,
) -> tuple[Tensor, LinearState]:
    """One token more, [B, 1, H, ·]: a rank-1 update of the state, constant in L.

    q and k are logarithms of features where the state comes from such.
    """
    with torch.autocast(q.device.type, enabled=False):
        q, k, v = (_at_least_fp32(x)[:, 0] for x in (q, k, v))  # [B, H, ·]
        rate = None if log_decay is None else log_decay.to(q.dtype)
        log_scale = state.log_scale
        if log_scale is not None:
            per_head = code is not None
            q, k, factor, log_scale = stabilise_step(q, k, rate, log_scale, per_head)
            state, eps = state.scaled(factor), 0
        elif rate is not None:
            state = state.scaled(rate.exp()[:, None])
        norm_q, norm_k = q, k
        if code is not None:
            q, k, norm = _encode(q[:, None], k[:, None], code)
            norm_q, norm_k = (x[:, 0] for x in norm or (q, k))
            q, k = q[:, 0], k[:, 0]
        kv = torch.addcmul(state.kv, k[..., None], v[..., None, :])
        state = LinearState(kv, state.k + norm_k, log_scale)
        numerator = (q[..., None, :] @ state.kv)[..., 0, :]  # [B, H, V]
        denominator = (norm_q * state.k).sum(-1, keepdim=True)
        return (numerator / normaliser(denominator, eps))[:, None], state


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_features: bool = False,
    code: LayerCode | None = None,
    key_mask: Tensor | None = None,
    eps: float = 1e-6,
) -> Tensor:
    """Bidirectional linear attention: every token sees every unmasked key. Shapes as above."""
    with torch.autocast(q.device.type, enabled=False):
        q, k, v = (_at_least_fp32(x) for x in (q, k, v))
        if log_features:
            q, k = stabilise_all(q, k, key_mask, per_head=code is not None)
            eps = 0
        elif key_mask is not None:
            k = k * key_mask[:, :, None, None]
        norm = None
        if code is not None:
            q, k, norm = _encode(q, k, code)
        norm_q, norm_k = norm or (q, k)
        kv = torch.einsum("blhe,blhv->bhev", k, v)
        numerator = torch.einsum("blhe,bhev->blhv", q, kv)
        denominator = torch.einsum("blhe,bhe->blh", norm_q, norm_k.sum(1))
    return numerator / normaliser(denominator, eps)[..., None]


def _encode(q: Tensor, k: Tensor, code: LayerCode) -> tuple[Tensor, Tensor, Norm | None]:
    """Encoded features, and those for the normaliser where they are others."""
    encoded_q, encoded_k = code.encode(q, k)
    return encoded_q, encoded_k, None if code.keeps_sign else (q, k)


def _at_least_fp32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
