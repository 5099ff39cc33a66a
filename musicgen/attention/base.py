"""Interfaces of attention and of feature maps, and what queries may see."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from musicgen.attention.span import LayerSpan
from musicgen.position.base import LayerCode, Site
from musicgen.random import NoiseKey


class AttentionMask(NamedTuple):
    """What the queries of one layer may see."""

    causal: bool  # token n sees only tokens m ≤ n
    key_mask: Tensor | None = None  # [B, L], true where a key may be seen; None: all
    span: LayerSpan | None = None  # the layer's limit on lags


class Attention(nn.Module, ABC):
    """Weighted average of values: no projections, no hidden state.

    Args:
        encoded_dim: width E of the encoded queries and keys.
        logit_scale: factor on q·k in the softmax, or in the softmax that features approximate.
        site: where the positional encoding acts.
    """

    name: ClassVar[str]  # on the command line
    accepts: ClassVar[frozenset[Site]]  # where a positional encoding may act
    supports_span: ClassVar[bool] = False  # masks may have a span
    supports_decay: ClassVar[bool] = False  # codes may have a decay
    has_fixed_state: ClassVar[bool] = False  # the state's size is independent of length
    feature_dim: int  # width M of the feature maps, if `accepts` has `Site.FEATURE`
    decays_by_token: bool = False  # takes a number for each token and head

    def __init__(
        self, encoded_dim: int, logit_scale: float, num_heads: int, *, site: Site = Site.QUERY_KEY
    ) -> None:
        super().__init__()
        self.logit_scale, self.site = logit_scale, site

    @property
    def log_decay(self) -> Tensor | None:
        """Logarithm of each head's own decay, below 0: [H]; None: none that is constant."""
        return None

    @abstractmethod
    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        code: LayerCode,
        mask: AttentionMask,
        *,
        token_decay: Tensor | None = None,
        state: Any = None,
        return_state: bool = False,
        overwrite: bool = False,
    ) -> tuple[Tensor, Any]:
        """Average the values by attention.

        Args:
            q, k, v: queries, keys [B, L, H, K] and values [B, L, H, V].
            token_decay: [B, L, H], of any size and sign, if the attention `decays_by_token`.
            state: what an earlier call returned for the tokens before these (causal only).
            return_state: also return the state after these tokens.
            overwrite: the memory of `state` may be reused; without gradients only.

        Returns:
            [B, L, H, V], and the state or None.
        """


class FeatureMap(nn.Module, ABC):
    """A positive map φ such that φ(q)·φ(k) replaces the softmax's exp(logit_scale q·k)."""

    name: ClassVar[str]  # of linear attention with this map on the command line
    log_features: ClassVar[bool] = False  # `queries` and `keys` return log φ
    feature_dim: int  # output width M; the input width `dim` unless overridden

    def __init__(self, dim: int, logit_scale: float) -> None:
        super().__init__()
        self.feature_dim, self.logit_scale = dim, logit_scale

    @property
    def directions(self) -> Tensor | None:
        """Vectors [E, M'], of whose products with q and k features are made; None: of q and k."""
        return None

    @abstractmethod
    def queries(self, q: Tensor) -> Tensor:
        """Compute φ(q) up to a factor for each query, which normalising cancels.

        [..., E] or products with the directions [..., M'], in fp32 or fp64 -> [..., M].
        """

    def keys(self, k: Tensor, squared_norm: Tensor | None = None) -> Tensor:
        """Compute φ(k) likewise, with ‖k‖² [..., 1] where k are products. Default: as queries."""
        return self.queries(k)

    def redraw(self, key: NoiseKey) -> None:
        """Redraw random features, if there are any."""
