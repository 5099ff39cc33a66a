"""Linear attention: a feature map, and the causal product."""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from musicgen.attention.backends import BACKENDS, select_backend
from musicgen.attention.base import Attention, AttentionMask, FeatureMap
from musicgen.attention.causal_product import LinearState, NormFeatures, normaliser, token_parts
from musicgen.attention.stabilise import (
    rescaled,
    stabilise,
    stabilise_bidirectional,
    stabilise_step,
)
from musicgen.errors import parameter_of
from musicgen.position.base import (
    LayerCode,
    Site,
    at_least_fp32,
    prefers_large_operations,
    product_dtype,
)
from musicgen.validation import check_choice

_EPS = 1e-6  # added to the magnitude of a normaliser, which may vanish


class LinearAttention(Attention):
    """Linear attention: φ(q)·φ(k) instead of exp(logit_scale q·k) (Katharopoulos et al. 2020).

    Time is linear in length, and decoding has a state of fixed size.

    Args:
        feature_map: builds φ from `dim` and `logit_scale`.
        decay: a learned factor by which earlier tokens weigh less; causal only.
            `none`: no decay.
            `head`: the pair (n, m) is weighted by γ^(n − m), with log γ = −exp(ρ) per head.
            `token`: it is weighted by the product of γ_i over the tokens m < i ≤ n that are not
            masked, with log γ_i = −softplus(g_i) exp(ρ), where g_i = `token_decay` is a linear
            function of the token, as in Mamba-2 (Dao and Gu 2024) and simple GLA.
        backend: implementation of the causal product in training (see `causal_linear_attention`);
            `triton` computes the features of FAVOR+, too, so that none are in memory. Evaluation
            and generation use `auto`, so that a checkpoint runs on any machine.
    """

    name = "linear"
    supports_decay = True
    has_fixed_state = True
    accepts = frozenset({Site.EMBEDDING, Site.QUERY_KEY, Site.FEATURE})

    def __init__(
        self,
        encoded_dim: int,
        logit_scale: float,
        num_heads: int,
        *,
        site: Site = Site.QUERY_KEY,
        feature_map: Callable[..., FeatureMap],
        decay: str = "none",
        backend: str = "auto",
    ) -> None:
        super().__init__(encoded_dim, logit_scale, num_heads, site=site)
        check_choice("decay", decay, ("none", "head", "token"))
        # Two forms of the product that earlier versions had, in stored runs.
        self.backend = "auto" if backend in ("batched", "chunked") else backend
        check_choice("backend", self.backend, BACKENDS)
        with parameter_of("feature_map"):
            self.feature_map = feature_map(dim=encoded_dim, logit_scale=logit_scale)
        self.feature_dim = self.feature_map.feature_dim
        self.decay = None
        self.decays_by_token = decay == "token"
        if decay != "none":
            # numpy's `linspace`, as torch's imports the compiler on the meta device
            rho = np.linspace(-7, -2.5, num_heads, dtype=np.float32)
            if self.decays_by_token:  # the same rates where g is 0, as softplus(0) = ln 2
                rho -= math.log(math.log(2))
            self.decay = nn.Parameter(torch.tensor(rho))

    @property
    def log_decay(self) -> Tensor | None:
        if self.decay is None or self.decays_by_token:
            return None
        return -at_least_fp32(self.decay)[0].exp()

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        code: LayerCode,
        mask: AttentionMask,
        *,
        token_decay: Tensor | None = None,
        state: LinearState | None = None,
        return_state: bool = False,
        overwrite: bool = False,
    ) -> tuple[Tensor, LinearState | None]:
        log_features, key_mask = self.feature_map.log_features, mask.key_mask
        backend = self.backend if self.training and mask.causal else "auto"
        directions = self.feature_map.exponent_directions if backend == "triton" else None
        if directions is not None and self.site != Site.FEATURE:
            log_decay = self.total_decay(code, mask, token_decay)
            q, k = code.encode(q, k)
            fused = select_backend(backend, q, log_decay)
            factor = self.logit_scale / 2
            out, state = fused(
                q, k, v, log_decay, key_mask, state, directions=directions, norm_factor=factor
            )
            return out, state if return_state else None
        phi_q, phi_k, feature_code = self.features(q, k, code)
        if not mask.causal:
            out = bidirectional_linear_attention(
                phi_q, phi_k, v, log_features=log_features, code=feature_code, key_mask=key_mask
            )
            return out, None
        log_decay = self.total_decay(code, mask, token_decay)
        if state is not None and q.shape[1] == 1 and key_mask is None:
            return linear_attention_step(
                phi_q, phi_k, v, state, log_decay=log_decay, code=feature_code
            )
        return causal_linear_attention(
            phi_q,
            phi_k,
            v,
            log_features=log_features,
            log_decay=log_decay,
            code=feature_code,
            key_mask=key_mask,
            state=state,
            return_state=return_state,
            backend=backend,
        )

    def features(
        self, q: Tensor, k: Tensor, code: LayerCode
    ) -> tuple[Tensor, Tensor, LayerCode | None]:
        """Return φ(q) and φ(k), [B, L, H, M] in fp32 or fp64, and the code that encodes them.

        A code at another site is applied here to q and k, before the feature map, and None is
        returned in its place.
        """
        on_features = self.site == Site.FEATURE
        query_key_code = LayerCode() if on_features else code
        directions, squared_norm = self.feature_map.directions, None
        if directions is None:
            q, k = query_key_code.encode(q, k)
        else:
            q, k, squared_norm = query_key_code.project(q, k, directions)
        q, k = at_least_fp32(q, k)
        with torch.autocast(q.device.type, enabled=False):
            phi_q, phi_k = self.feature_map.queries(q), self.feature_map.keys(k, squared_norm)
        return phi_q, phi_k, code if on_features else None

    def total_decay(
        self, code: LayerCode, mask: AttentionMask, token_decay: Tensor | None
    ) -> Tensor | None:
        """Return the logarithm of the product of the two decays: [H] or [B, L, H]; None: no decay.

        One is learned by attention, the other belongs to the positional encoding.
        """
        log_decay = self.log_decay
        if self.decays_by_token:
            assert self.decay is not None
            assert token_decay is not None
            rho, g = at_least_fp32(self.decay, token_decay)
            log_decay = -F.softplus(g) * rho.exp()
            if mask.key_mask is not None:
                log_decay = log_decay.masked_fill(~mask.key_mask[..., None], 0)
        if log_decay is None:
            return code.log_decay
        return log_decay if code.log_decay is None else log_decay + code.log_decay


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
    eps: float = _EPS,
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
        return_state: also return the sums after these tokens.
        eps: added to the normaliser's magnitude; with `log_features` only where it may vanish.
        backend: `auto` (`causal_product`; on accelerators and in compiled graphs, its products
            within chunks are in the dtype of autocast unless that is fp16), `triton` (one kernel
            for NVIDIA; features are positive and not encoded), `fla` (NVIDIA; in TF32), or
            `fast_transformers` (an optional package, without decay).

    Returns:
        The output [B, L, H, V], and the state, or None without `return_state`.

    Raises:
        ParameterError: the backend is unknown, or does not support these inputs.
    """
    compute = select_backend(backend, q, log_decay, code)
    if backend == "triton":
        added = None if log_features else eps
        out, state = compute(q, k, v, log_decay, key_mask, state, eps=added)
        return out, state if return_state else None
    dtype = product_dtype(q.device)
    with torch.autocast(q.device.type, enabled=False):
        q, k, v = at_least_fp32(q, k, v)
        narrow = dtype == torch.float16  # sums over tokens exceed its range
        if q.dtype == torch.float64 or narrow or not prefers_large_operations(q.device):
            dtype = q.dtype
        rate = None if log_decay is None else log_decay.to(q.dtype)
        if not log_features:
            k = k if key_mask is None else k * key_mask[:, :, None, None]
            q, k, norm = encode_features(q, k, code)
            arguments = q, k, v, norm, rate, state
            out, state = compute(*arguments, dtype=dtype, eps=eps, return_state=return_state)
            return out, state if return_state else None
        # Heads first in memory, as in the product: the backward pass then keeps features once.
        q, k = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k))
        q, k, scales, last = stabilise(q, k, key_mask, rate, state, per_head=code is not None)
        q, k, norm = encode_features(q, k, code)
        compute = partial(compute, dtype=dtype, eps=eps if may_vanish(code) else None)
        out, state = _with_scales(compute, q, k, v, norm, rate, state, scales, return_state)
    return out, state._replace(log_scale=last) if return_state and state else None


def _with_scales(
    compute: Callable[..., tuple[Tensor, LinearState | None]],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    norm: NormFeatures | None,
    log_decay: Tensor | None,
    state: LinearState | None,
    scales: dict[int, Tensor],
    return_state: bool,
) -> tuple[Tensor, LinearState | None]:
    """Return the product of features with scales by the token at which each begins, usually one.

    The sums over earlier tokens are brought to the next scale.
    """
    inputs = q, k, v, norm, log_decay
    outputs: list[Tensor] = []
    parts: Iterable[tuple[Any, ...]] = [inputs]
    if len(scales) > 1:
        parts = token_parts(inputs, np.diff([*scales, q.shape[1]]).tolist())
    for scale, (*tensors, rate) in zip(scales.values(), parts, strict=True):
        if state is not None:
            state, rate = rescaled(state, scale, rate, tensors[0].shape[1])
        more = return_state or len(outputs) + 1 < len(scales)
        out, state = compute(*tensors, rate, state, return_state=more)
        state = None if state is None else state._replace(log_scale=scale)
        outputs.append(out)
    return outputs[0] if len(scales) == 1 else torch.cat(outputs, dim=1), state


def linear_attention_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: LinearState,
    *,
    log_decay: Tensor | None = None,
    code: LayerCode | None = None,
) -> tuple[Tensor, LinearState]:
    """Return the output of one more token, [B, 1, H, V], and the state after it.

    The state gets a rank-1 update, so that the time does not depend on the number of tokens.

    Args:
        q, k, v: [B, 1, H, E], [B, 1, H, E] and [B, 1, H, V]. q and k are logarithms of features if
            the state was computed from logarithms.
        state: sums over the tokens before this one.
        log_decay: [H] or [B, 1, H].
        code: as in `causal_linear_attention`.
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
            state = state.scaled(factor)
        elif rate is not None:
            state = state.scaled(rate.exp()[..., None])
        q, k, norm = encode_features(q, k, code)
        norm_q, norm_k = (x.squeeze(1) for x in norm or (q, k))  # [B, H, M]
        kv = torch.addcmul(state.kv, k.permute(0, 2, 3, 1), v.transpose(1, 2))
        state = LinearState(kv, state.k + norm_k, log_scale)
        numerator = q.transpose(1, 2) @ state.kv  # [B, H, 1, V]
        denominator = (norm_q * state.k).sum(-1, keepdim=True)
        eps = _EPS if log_scale is None or may_vanish(code) else None
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
    eps: float | None = _EPS,
) -> Tensor:
    """Return bidirectional linear attention, [B, L, H, V].

    For the arguments, see `causal_linear_attention`.
    """
    with torch.autocast(q.device.type, enabled=False):
        q, k, v = at_least_fp32(q, k, v)
        if log_features:
            q, k = stabilise_bidirectional(q, k, key_mask, per_head=code is not None)
            eps = eps if may_vanish(code) else None
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
