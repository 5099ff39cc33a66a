"""What an attention kernel and a feature map are to a layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from musicgen.position.base import LayerCode, NoiseKey, Site


class AttentionKernel(nn.Module, ABC):
    """Weighted average of values: no projections, no hidden state.

    Args:
        encoded_dim: width E of the encoded queries and keys.
        logit_scale: factor on q·k where the kernel stands for a softmax.
        num_heads: H.
        site: where the positional encoding acts.

    Attributes:
        name: the word for it on the command line.
        feature_dim: width M of its feature maps, where it accepts encodings of these.
        accepts: sites at which a positional encoding may act under this kernel.
        supports_span: `forward` and `step` take a `span`, a `LayerSpan`.
    """

    name: ClassVar[str]
    accepts: ClassVar[frozenset[Site]]
    supports_span: ClassVar[bool] = False

    feature_dim: int

    def __init__(
        self,
        encoded_dim: int,
        logit_scale: float,
        num_heads: int,
        *,
        site: Site = Site.QUERY_KEY,
    ) -> None:
        super().__init__()
        self.encoded_dim, self.logit_scale, self.num_heads = encoded_dim, logit_scale, num_heads
        self.site = site

    @abstractmethod
    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        code: LayerCode,
        *,
        causal: bool,
        key_mask: Tensor | None = None,
        state: Any = None,
        return_state: bool = False,
    ) -> tuple[Tensor, Any]:
        """Average the values by attention.

        Args:
            q, k, v: queries, keys [B, L, H, K] and values [B, L, H, V].
            code: the positions, as this layer sees them.
            causal: token n sees only tokens m ≤ n.
            key_mask: [B, L], true where a key may be seen; None if all may.
            state: what an earlier call returned for the tokens before these (causal only).
            return_state: also return the state after these tokens.

        Returns:
            [B, L, H, V], and the state (None unless asked for).
        """

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, code: LayerCode, state: Any
    ) -> tuple[Tensor, Any]:
        """One further token after `state`: L = 1, causal."""
        return self(q, k, v, code, causal=True, state=state, return_state=True)


class FeatureMap(nn.Module, ABC):
    """A positive map φ with φ(q)·φ(k) in the place of the softmax's exp(q·k).

    Args:
        dim: input width E.
        logit_scale: factor on q·k.

    Attributes:
        name: the word for attention with this map on the command line.
        feature_dim: output width M.
        log_features: `queries` and `keys` return log φ.
    """

    name: ClassVar[str]
    feature_dim: int
    log_features: ClassVar[bool] = False

    def __init__(self, dim: int, logit_scale: float) -> None:
        super().__init__()
        self.dim, self.logit_scale = dim, logit_scale

    def forward(self, q: Tensor, k: Tensor, code: LayerCode) -> tuple[Tensor, Tensor]:
        """Encode by position, then map, in fp32: [B, L, H, K] -> [B, L, H, M] each."""
        q, k = code.encode(q, k)
        with torch.autocast(q.device.type, enabled=False):
            return self.queries(q.float()), self.keys(k.float())

    @abstractmethod
    def queries(self, q: Tensor) -> Tensor:
        """φ(q): [..., E] -> [..., M]. May scale a query as a whole: normalising cancels it."""

    @abstractmethod
    def keys(self, k: Tensor) -> Tensor:
        """φ(k): [..., E] -> [..., M]."""

    def redraw(self, key: NoiseKey) -> None:
        """Draw random features anew; nothing to do where there are none."""
