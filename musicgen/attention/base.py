"""Interfaces of attention and of feature maps, and the mask of visible keys."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from musicgen.attention.span import LayerSpan
from musicgen.position.base import LayerCode, Site
from musicgen.random import NoiseKey


class AttentionMask(NamedTuple):
    """Which keys the queries of one layer may see."""

    causal: bool  # token n sees only tokens m ≤ n
    key_mask: Tensor | None = None  # [B, L], true where a key may be seen; None: all
    span: LayerSpan | None = None  # the layer's limit on lags


class Attention(nn.Module, ABC):
    """Base class of attention, which averages values with weights from queries and keys.

    It has no projections, which belong to the layer. The state of decoding is passed in and
    returned, never kept in the module.

    Args:
        encoded_dim: width E of the encoded queries and keys.
        logit_scale: factor on q·k in the softmax, or in the softmax that features approximate.
        num_heads: number of heads H.
        site: where the positional encoding acts.
    """

    name: ClassVar[str]  # on the command line
    accepts: ClassVar[frozenset[Site]]  # where a positional encoding may act
    supports_span: ClassVar[bool] = False  # masks may have a span
    supports_decay: ClassVar[bool] = False  # positional encodings may have a decay
    has_fixed_state: ClassVar[bool] = False  # the state's size is independent of length
    feature_dim: int  # width M of the feature maps, if `accepts` has `Site.FEATURE`
    decays_by_token: bool = False  # `forward` needs `token_decay`

    def __init__(
        self, encoded_dim: int, logit_scale: float, num_heads: int, *, site: Site = Site.QUERY_KEY
    ) -> None:
        super().__init__()
        self.logit_scale, self.site = logit_scale, site

    @property
    def log_decay(self) -> Tensor | None:
        """Logarithm of each head's decay per token, below 0: [H]; None: no constant decay."""
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
        """Return the values averaged by attention, and the state after these tokens.

        Args:
            q, k, v: queries and keys [B, L, H, K], values [B, L, H, V].
            code: the positional encoding of these tokens for this layer.
            mask: which keys are visible.
            token_decay: [B, L, H], any real numbers. An attention that `decays_by_token`
                computes the decay of each token from them.
            state: what an earlier call returned for the tokens before these (causal only).
            return_state: also return the state after these tokens.
            overwrite: reuse the memory of `state`, which is invalid then; without gradients only.

        Returns:
            The averages [B, L, H, V], and the state, or None without `return_state`.
        """


class FeatureMap(nn.Module, ABC):
    """A positive map φ such that φ(q)·φ(k) replaces the softmax's exp(logit_scale q·k).

    Args:
        dim: width E of the encoded queries and keys.
        logit_scale: factor on q·k.
    """

    name: ClassVar[str]  # on the command line, as a value of `attention`
    log_features: ClassVar[bool] = False  # `queries` and `keys` return log φ
    feature_dim: int  # output width M; the input width `dim` unless overridden

    def __init__(self, dim: int, logit_scale: float) -> None:
        super().__init__()
        self.feature_dim, self.logit_scale = dim, logit_scale

    @property
    def directions(self) -> Tensor | None:
        """Directions [E, M']: the map is of their products with q and k; None: of q and k."""
        return None

    @property
    def exponent_directions(self) -> Tensor | None:
        """Ω [E, M] of a map with log φ(q) = q Ω and log φ(k) = k Ω − logit_scale ‖k‖² / 2, or None.

        The fused kernel computes such features from q and k.
        """
        return None

    @abstractmethod
    def queries(self, q: Tensor) -> Tensor:
        """Return φ(q), or log φ(q) if `log_features`: [..., M].

        A factor per query may be left out, as it cancels in the normaliser.

        Args:
            q: queries [..., E], or their products with `directions` [..., M'], in fp32 or fp64.
        """

    def keys(self, k: Tensor, squared_norm: Tensor | None = None) -> Tensor:
        """Return φ(k), or log φ(k) if `log_features`: [..., M]. The default is the map of queries.

        Args:
            k: keys [..., E], or their products with `directions` [..., M'], in fp32 or fp64.
            squared_norm: ‖k‖² [..., 1], where `k` are products.
        """
        return self.queries(k)

    def redraw(self, key: NoiseKey) -> None:
        """Redraw random features, if there are any."""


def redraw_features(model: nn.Module, key: NoiseKey | None = None) -> None:
    """Redraw the random features of all feature maps in a model, such as those of FAVOR+.

    Args:
        key: of the draw; each feature map folds in its number. Data-parallel processes need the
            same key. None: a new one from torch's global generator.
    """
    key = key or NoiseKey.fresh()
    maps = (module for module in model.modules() if isinstance(module, FeatureMap))
    for i, feature_map in enumerate(maps):
        feature_map.redraw(key.fold(i))
