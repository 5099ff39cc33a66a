"""A Transformer layer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from musicgen.attention import Attention, AttentionMask, GaussianSpan
from musicgen.errors import ParameterError, parameter_of
from musicgen.models.state import LayerState
from musicgen.position import LayerCode, PositionalEncoding, Site
from musicgen.position.base import prefers_large_operations
from musicgen.validation import check_bool, check_choice, check_float, check_int


class LayerNorm(nn.LayerNorm):
    """Layer normalisation (Ba et al. 2016), of each token separately."""

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Return x normalised: [B, L, D]."""
        return super().forward(x)


class BatchNorm(nn.Module):
    """Batch normalisation (Ioffe and Szegedy 2015) over the tokens that are not padding.

    In training, the output of a token depends on all tokens of the batch, later ones included.

    Args:
        dim: number of features D.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(dim)

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Return x normalised, [B, L, D]; zero at padding, where `key_mask` [B, L] is false."""
        if key_mask is None:
            return self.norm(x.flatten(0, 1)).view_as(x)
        out = torch.zeros_like(x)
        out[key_mask] = self.norm(x[key_mask]).to(x.dtype)
        return out


class ShortConvolution(nn.Module):
    """Adds to each token a weighted sum of the last `width` tokens: y_n = x_n + Σ_i w_i ⊙ x_{n−i}.

    It is used before q, k and v, as in H3 (Fu et al. 2023) and Mamba-2 (Dao and Gu 2024), with a
    residual connection. w is initialised as 0, so that the convolution changes nothing at first.
    In bidirectional models, the sum is over width // 2 tokens before, the token, and tokens after.

    Args:
        dim: number of features D.
        width: number of tokens in the sum.
    """

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.weight = nn.Parameter(torch.zeros(dim, 1, width))  # the last weighs the token itself

    def forward(
        self, x: Tensor, key_mask: Tensor | None, causal: bool, before: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return x plus the sums [B, L, D], and the argument `before` of the next call.

        Args:
            x: [B, L, D].
            key_mask: [B, L], false at tokens that contribute nothing.
            causal: whether sums are over earlier tokens only.
            before: [B, width − 1, D], the tokens before these (causal only); None: no tokens.
        """
        reach = self.width - 1
        seen = x if key_mask is None else x.masked_fill(~key_mask[..., None], 0)
        weight = self.weight[:, 0]  # indexed, its gradient has the layout that DDP expects
        if before is None and causal and not prefers_large_operations(x.device):
            after = F.pad(seen[:, -reach:], (0, 0, max(0, reach - x.shape[1]), 0))
            total = _ShiftedSum.apply(seen, weight)
            return total if key_mask is None else x - seen + total, after
        if before is None:
            left = reach if causal else self.width // 2
            window = F.pad(seen, (0, 0, left, reach - left))
        else:
            window = torch.cat((before.to(x.dtype), seen), dim=1)
        if x.shape[1] == 1:
            total = (window * weight.T).sum(1, keepdim=True)
        else:  # conv2d, as conv1d is several times slower on CPUs
            total = F.conv2d(window.mT.unsqueeze(2), weight[:, None, None], groups=x.shape[-1])
            total = total.squeeze(2).mT
        return x + total, window[:, -reach:].clone()


class _ShiftedSum(torch.autograd.Function):
    """y_n = x_n + Σ_i w_i ⊙ x_{n−i}: faster than `conv2d` on a CPU, above all backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """Return y [B, L, D] for x [B, L, D] and w [D, width], whose last column is w_0."""
        ctx.save_for_backward(x, weight)
        own, *earlier = weight.to(x.dtype).T.contiguous().flip(0)
        out = x * (1 + own)
        for i, tap in enumerate(earlier[: x.shape[1] - 1], start=1):
            out[:, i:].addcmul_(x[:, :-i], tap)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (x, weight), (grad,) = ctx.saved_tensors, gradients
        own, *earlier = weight.to(x.dtype).T.contiguous().flip(0)
        grad_x = grad * (1 + own)
        of_taps = torch.zeros_like(weight.T)
        of_taps[-1] = (x * grad).sum((0, 1))
        for i, tap in enumerate(earlier[: x.shape[1] - 1], start=1):
            grad_x[:, :-i].addcmul_(grad[:, i:], tap)
            of_taps[-1 - i] = (x[:, :-i] * grad[:, i:]).sum((0, 1))
        return grad_x, of_taps.T


NORMS: dict[str, Any] = {"layer": LayerNorm, "batch": BatchNorm}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}


@dataclass(frozen=True, kw_only=True)
class LayerSettings:
    """Sizes and options of a Transformer layer.

    Attributes:
        dim: model width D.
        num_heads: number of heads H; the head width is K = D / H.
        ff_dim: hidden width of the feed-forward network.
        dropout: dropout probability on the embedding, on the output of attention, and on the hidden
            layer and the output of the feed-forward network.
        norm_first: pre-norm (Xiong et al. 2020) instead of post-norm.
        short_conv: width of a convolution before q, k and v (`ShortConvolution`); None: there is
            none.
        qk_norm: before the positional encoding, normalise q and k of each head by their root mean
            square, with a learned scale. Henry et al. (2020) normalise them by their length.
        attention_dim: width of all heads together, if it differs from `dim`.
        attention_bias: whether the projections of attention have biases.
        activation: activation of the feed-forward network, `relu` or `gelu`.
        norm: `layer`, or `batch` (see `BatchNorm`).

    Raises:
        ParameterError: a size or option is invalid.
    """

    dim: int
    num_heads: int
    ff_dim: int
    dropout: float = 0.1
    norm_first: bool = False
    short_conv: int | None = None
    qk_norm: bool = False
    attention_dim: int | None = None
    attention_bias: bool = True
    activation: str = "relu"
    norm: str = "layer"

    def __post_init__(self) -> None:
        for name in ("norm_first", "qk_norm", "attention_bias"):
            check_bool(name, getattr(self, name))
        for name in ("dim", "num_heads", "ff_dim"):
            check_int(name, getattr(self, name))
        check_int("attention_dim", self.attention_dim, none_means="dim")
        check_float("dropout", self.dropout, below=1)
        check_int("short_conv", self.short_conv, 2, none_means="no convolution")
        check_choice("activation", self.activation, ACTIVATIONS)
        check_choice("norm", self.norm, NORMS)
        if self.all_heads_dim % self.num_heads:
            name = "dim" if self.attention_dim is None else "attention_dim"
            expected = f"expected a divisor of {name}={self.all_heads_dim}"
            raise ParameterError("num_heads", self.num_heads, expected)

    @property
    def all_heads_dim(self) -> int:
        """Width of all heads together."""
        return self.dim if self.attention_dim is None else self.attention_dim

    @property
    def head_dim(self) -> int:
        """Width K of a head."""
        return self.all_heads_dim // self.num_heads


class Layer(nn.Module):
    """A Transformer layer: attention and a feed-forward network, with residuals and norms."""

    NUM_FUSED: ClassVar = {"qkv": 3}  # one linear map for queries, keys and values

    def __init__(
        self, settings: LayerSettings, attention: Attention, span: GaussianSpan | None
    ) -> None:
        super().__init__()
        s, dim, all_heads_dim = settings, settings.dim, settings.all_heads_dim
        self.num_heads, self.norm_first = s.num_heads, s.norm_first
        self.attention, self.span = attention, span
        self.short_conv = None if s.short_conv is None else ShortConvolution(dim, s.short_conv)
        self.qkv = nn.Linear(dim, 3 * all_heads_dim, bias=s.attention_bias)
        self.q_norm, self.k_norm = (nn.RMSNorm(s.head_dim) if s.qk_norm else None for _ in range(2))
        self.token_decay = nn.Linear(dim, s.num_heads) if attention.decays_by_token else None
        self.out = nn.Linear(all_heads_dim, dim, bias=s.attention_bias)
        self.attention_norm, self.ff_norm = NORMS[s.norm](dim), NORMS[s.norm](dim)
        self.ff_in, self.ff_out = nn.Linear(dim, s.ff_dim), nn.Linear(s.ff_dim, dim)
        self.activation = ACTIVATIONS[s.activation]
        self.dropout = nn.Dropout(s.dropout)

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        code: LayerCode,
        mask: AttentionMask,
        state: LayerState | None,
        return_state: bool,
        overwrite: bool,
    ) -> tuple[Tensor, LayerState | None]:
        """Return the output of the layer [B, L, D], and the state, or None without `return_state`.

        Args:
            x: [B, L, D].
            positions: [1|B, L, P].
            code: the positional encoding of these tokens for this layer.
            mask: which keys are visible; the layer adds its span.
            state: what an earlier call returned for the tokens before these.
            return_state: also return the state after these tokens.
            overwrite: reuse the memory of `state`; without gradients only.
        """
        before, tokens = (None, None) if state is None else state
        key_mask = mask.key_mask
        y = self.attention_norm(x, key_mask) if self.norm_first else x
        if self.short_conv is not None:
            y, tokens = self.short_conv(y, key_mask, mask.causal, tokens)
        q, k, v = self.qkv(y).unflatten(-1, (3, self.num_heads, -1)).unbind(2)  # [B, L, H, K]
        if self.q_norm is not None and self.k_norm is not None:
            dtype = self.q_norm.weight.dtype  # not the dtype of autocast
            q, k = self.q_norm(q.to(dtype)), self.k_norm(k.to(dtype))
        if self.span is not None:
            mask = mask._replace(span=self.span(positions))
        decay = None if self.token_decay is None else self.token_decay(y)  # [B, L, H]
        mixed, after = self.attention(
            q,
            k,
            v,
            code,
            mask,
            token_decay=decay,
            state=before,
            return_state=return_state,
            overwrite=overwrite,
        )
        x = x + self.dropout(self.out(mixed.flatten(2).to(x.dtype)))
        if self.norm_first:
            ff_input = self.ff_norm(x, key_mask)
        else:
            ff_input = x = self.attention_norm(x, key_mask)
        x = x + self.dropout(self.ff_out(self.dropout(self.activation(self.ff_in(ff_input)))))
        if not self.norm_first:
            x = self.ff_norm(x, key_mask)
        return x, (after, tokens) if return_state else None


def build_position(
    build: Callable[..., PositionalEncoding], settings: LayerSettings, num_layers: int, width: int
) -> PositionalEncoding:
    """Return the positional encoding for vectors of this width."""
    sizes = {"num_heads": settings.num_heads, "width": width, "model_dim": settings.dim}
    with parameter_of("position"):
        return build(num_layers=num_layers, **sizes)


def coordinates_of(position: PositionalEncoding, layer: Layer) -> tuple[int, tuple[str, ...]]:
    """Return the number of columns that positions must have, and the names of the coordinates."""
    span_dims = 0 if layer.span is None else layer.span.num_dims
    span_names = ("index", "time")[:span_dims]  # a span takes the first coordinates
    names = max(position.coordinate_names, span_names, key=len)
    return max(position.num_columns, span_dims), names


def build_layers(
    build_attention: Callable[..., Attention],
    build_span: Callable[..., GaussianSpan] | None,
    settings: LayerSettings,
    num_layers: int,
    site: Site,
    encoded_dim: int,
    logit_scale: float,
) -> list[Layer]:
    """Return the layers, with attention for encoded queries and keys of width `encoded_dim`."""
    layers = []
    for _ in range(num_layers):
        with parameter_of("attention"):
            attention = build_attention(encoded_dim, logit_scale, settings.num_heads, site=site)
        with parameter_of("span"):
            span = None if build_span is None else build_span()
        layers.append(Layer(settings, attention, span))
    return layers
