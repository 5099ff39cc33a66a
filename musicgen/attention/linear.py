"""Linear attention: a feature map, and the causal product."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from musicgen.attention.base import AttentionKernel, FeatureMap
from musicgen.attention.causal_product import (
    LinearState,
    causal_linear_attention,
    check_name,
    linear_attention,
    linear_attention_step,
)
from musicgen.errors import UserError
from musicgen.position.base import LayerCode, Site


class LinearAttention(AttentionKernel):
    """φ(q)·φ(k) in the place of exp(q·k): linear in length, a state of fixed size when decoding.

    Args:
        feature_map: builds φ from `dim` and `logit_scale`.
        decay: `learned` lets a pair (n, m) weigh γ^(n − m), one rate −log γ = exp(ρ) per head,
            ρ spread evenly from −7 to −2.5 at the start; causal only. `none`: all weigh alike.
        backend: of the causal product when training (see `causal_linear_attention`). Evaluation
            and generation take `auto`, so that a checkpoint runs on any machine.
    """

    name = "linear"
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
        if decay not in ("none", "learned"):
            raise UserError(f"model.attention.decay={decay}: give none or learned")
        check_name(backend)
        self.backend = backend
        self.feature_map = feature_map(dim=encoded_dim, logit_scale=logit_scale)
        self.feature_dim = self.feature_map.feature_dim
        start = torch.linspace(-7, -2.5, num_heads)
        self.decay = nn.Parameter(start) if decay == "learned" else None

    @property
    def log_decay(self) -> Tensor | None:
        """Log γ of each head, below 0: [H]."""
        return None if self.decay is None else -self.decay.float().exp()

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        code: LayerCode,
        *,
        causal: bool,
        key_mask: Tensor | None = None,
        state: LinearState | None = None,
        return_state: bool = False,
    ) -> tuple[Tensor, LinearState | None]:
        phi_q, phi_k, on_features = self._features(q, k, code)
        log_features = self.feature_map.log_features
        if not causal:
            assert self.decay is None, "decay is causal"
            out = linear_attention(
                phi_q, phi_k, v, log_features=log_features, code=on_features, key_mask=key_mask
            )
            return out, None
        return causal_linear_attention(
            phi_q,
            phi_k,
            v,
            log_features=log_features,
            log_decay=self._log_decay(on_features),
            code=on_features,
            key_mask=key_mask,
            state=state,
            return_state=return_state,
            backend=self.backend if self.training else "auto",
        )

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, code: LayerCode, state: LinearState
    ) -> tuple[Tensor, LinearState]:
        phi_q, phi_k, on_features = self._features(q, k, code)
        log_decay = self._log_decay(on_features)
        return linear_attention_step(phi_q, phi_k, v, state, log_decay=log_decay, code=on_features)

    def _features(
        self, q: Tensor, k: Tensor, code: LayerCode
    ) -> tuple[Tensor, Tensor, LayerCode | None]:
        """Features of queries and keys, and the code, if it is to act on these."""
        if self.site == Site.FEATURE:
            return *self.feature_map(q, k, LayerCode()), code
        return *self.feature_map(q, k, code), None

    def _log_decay(self, code: LayerCode | None) -> Tensor | None:
        """The layer's own decay and that of the code, where there are any."""
        own = self.log_decay
        if code is None or code.log_decay is None:
            return own
        return code.log_decay if own is None else own + code.log_decay
