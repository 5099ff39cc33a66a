"""Linear attention as functions: causal, one decoding step, and bidirectional."""

import torch
from torch import Tensor

from musicgen.attention.linear.backends import fla, select_backend
from musicgen.attention.linear.batched import batched
from musicgen.attention.linear.stabilise import (
    stabilise,
    stabilise_at_once,
    stabilise_bidirectional,
    stabilise_step,
)
from musicgen.attention.linear.state import (
    LinearState,
    NormFeatures,
    ProductInputs,
    RescalePoints,
    normaliser,
)
from musicgen.position.base import LayerCode, at_least_fp32, product_dtype


def causal_linear_attention(  # noqa: PLR0913
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
    """Return causal linear attention (Katharopoulos et al. 2020, eqs. 8–9), in fp32 or fp64.

    Args:
        q, k: feature maps of queries and keys, [B, L, H, E].
        v: values, [B, L, H, V].
        log_features: q and k are the logarithms of positive features, which may be of any size.
        log_decay: at most 0. With [H], the pair (n, m) is weighted by exp(log_decay · (n − m)) in
            the numerator and in the normaliser. With [B, L, H], it is weighted by the exponential
            of the sum over the tokens after m up to n, as in Mamba-2 (Dao and Gu 2024) and simple
            GLA. None: no decay.
        code: the positional encoding of features, applied after their exponents are brought into
            range. It decides whether the normaliser uses features before or after encoding (see
            `LayerCode`). None: features are not encoded.
        key_mask: [B, L], false where a key is left out.
        state: sums over the tokens before these. `kv` and `k` get gradients, `log_scale` does not.
        return_state: also return the sums after these tokens; `chunked` gives them no gradient.
        eps: added to the normaliser's magnitude; with `log_features` only where it may vanish.
        backend: `chunked` (a loop over chunks, for CPUs), `batched` (few large operations, for
            accelerators and compiled graphs; under autocast, products within chunks are in its
            dtype), `fla` (NVIDIA; in TF32), `fast_transformers` (an optional package, without
            decay), or `auto`: the fastest of the first two.

    Returns:
        The output [B, L, H, V], and the state, or None without `return_state`.

    Raises:
        ParameterError: the backend is unknown, or does not support these inputs.
    """
    compute = select_backend(backend, q, log_decay)
    dtype = product_dtype(q.device)
    with torch.autocast(q.device.type, enabled=False):
        q, k, v = at_least_fp32(q, k, v)
        rate = None if log_decay is None else log_decay.to(q.dtype)
        rescale_points: RescalePoints = {}
        log_scale = None
        if log_features:
            per_head, eps = code is not None, eps if may_vanish(code) else 0
            if compute in (batched, fla):
                q, k, state, log_scale = stabilise_at_once(q, k, key_mask, state, per_head)
            else:
                q, k, rescale_points, log_scale = stabilise(q, k, key_mask, rate, state, per_head)
        elif key_mask is not None:
            k = k * key_mask[:, :, None, None]
        q, k, norm = encode_features(q, k, code)
        inputs = ProductInputs(
            q,
            k,
            v,
            norm,
            log_decay=rate,
            state=state,
            dtype=q.dtype if q.dtype == torch.float64 else dtype,
            eps=eps,
            return_state=return_state,
            rescale_points=rescale_points,
        )
        out, last = compute(inputs)
    return out, last._replace(log_scale=log_scale) if return_state and last else None


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
    """Return the output of one more token, [B, 1, H, V], and the state after it.

    The state gets a rank-1 update, so that the time does not depend on the number of tokens.

    Args:
        q, k, v: [B, 1, H, E], [B, 1, H, E] and [B, 1, H, V]. q and k are logarithms of features if
            the state was computed from logarithms.
        state: sums over the tokens before this one.
        log_decay: [H] or [B, 1, H].
        code, eps: as in `causal_linear_attention`.
    """
    with torch.autocast(q.device.type, enabled=False):
        q, k, v = at_least_fp32(q, k, v)
        rate = None if log_decay is None else log_decay.to(q.dtype)
        if rate is not None and rate.dim() == 3:
            rate = rate.squeeze(1)  # [B, H]
        log_scale = state.log_scale
        if log_scale is not None:
            q, k, factor, log_scale = stabilise_step(
                q.squeeze(1), k.squeeze(1), rate, log_scale, per_head=code is not None
            )
            q, k = q[:, None], k[:, None]
            state, eps = state.scaled(factor), eps if may_vanish(code) else 0
        elif rate is not None:
            state = state.scaled(rate.exp()[..., None])
        q, k, norm = encode_features(q, k, code)
        norm_q, norm_k = (x.squeeze(1) for x in norm or (q, k))  # [B, H, M]
        kv = torch.addcmul(state.kv, k.permute(0, 2, 3, 1), v.transpose(1, 2))
        state = LinearState(kv, state.k + norm_k, log_scale)
        numerator = q.transpose(1, 2) @ state.kv  # [B, H, 1, V]
        denominator = (norm_q * state.k).sum(-1, keepdim=True)
        out = numerator / normaliser(denominator, eps)[..., None]
        return out.transpose(1, 2), state


def bidirectional_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_features: bool = False,
    code: LayerCode | None = None,
    key_mask: Tensor | None = None,
    eps: float = 1e-6,
) -> Tensor:
    """Return bidirectional linear attention, [B, L, H, V].

    For the arguments, see `causal_linear_attention`.
    """
    with torch.autocast(q.device.type, enabled=False):
        q, k, v = at_least_fp32(q, k, v)
        if log_features:
            q, k = stabilise_bidirectional(q, k, key_mask, per_head=code is not None)
            eps = eps if may_vanish(code) else 0
        elif key_mask is not None:
            k = k * key_mask[:, :, None, None]
        q, k, norm = encode_features(q, k, code)
        norm_q, norm_k = norm or (q, k)
        kv = torch.einsum("blhe,blhv->bhev", k, v)
        numerator = torch.einsum("blhe,bhev->blhv", q, kv)
        denominator = torch.einsum("blhe,bhe->blh", norm_q, norm_k.sum(1))
    return numerator / normaliser(denominator, eps)[..., None]


def encode_features(
    q: Tensor, k: Tensor, code: LayerCode | None
) -> tuple[Tensor, Tensor, NormFeatures | None]:
    """Return encoded features [B, L, H, E], and the normaliser's features if they differ."""
    if code is None:
        return q, k, None
    return *code.encode(q, k), None if code.encodes_normaliser else (q, k)


def may_vanish(code: LayerCode | None) -> bool:
    """Return whether the normaliser may be near zero although features are not."""
    return code is not None and code.encodes_normaliser and not code.keeps_sign
