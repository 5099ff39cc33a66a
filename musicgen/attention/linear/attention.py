"""Linear attention: a feature map, and the causal product."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from musicgen.attention.base import Attention, AttentionMask, FeatureMap
from musicgen.attention.linear.product import (
    bidirectional_linear_attention,
    causal_linear_attention,
    linear_attention_step,
)
from musicgen.attention.linear.state import LinearState
from musicgen.errors import parameter_of
from musicgen.position.base import LayerCode, Site, at_least_fp32
from musicgen.validation import check_choice


class LinearAttention(Attention):
    """Linear attention: φ(q)·φ(k) instead of exp(logit_scale q·k) (Katharopoulos et al. 2020).

    Time is linear in length, and decoding has a state of fixed size.

    Args:
        feature_map: builds φ from `dim` and `logit_scale`.
        decay: a learned factor by which earlier tokens weigh less; causal only.
            `none`: no decay.
            `head`: the pair (n, m) is weighted by γ^(n − m), with log γ = −exp(ρ) for each head.
            `token`: it is weighted by the product of γ_i over the tokens m < i ≤ n that are not
            masked, with log γ_i = −softplus(g_i) exp(ρ), where g_i = `token_decay` is a linear
            function of the token, as in Mamba-2 (Dao and Gu 2024) and simple GLA.
        backend: implementation of the causal product in training (see `causal_linear_attention`).
            Evaluation and generation use `auto`, so that a checkpoint runs on any machine.
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
        self.backend = backend
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
        phi_q, phi_k, feature_code = self.features(q, k, code)
        log_features, key_mask = self.feature_map.log_features, mask.key_mask
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
            backend=self.backend if self.training else "auto",
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
