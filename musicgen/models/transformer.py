"""The model: embedding, Transformer layers and a linear head."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from musicgen.attention import Attention, AttentionMask, AttentionSpan
from musicgen.errors import ParameterError, parameter_of
from musicgen.models.compatibility import check_compatible
from musicgen.models.dropout import Dropout
from musicgen.models.layer import Layer, LayerState
from musicgen.models.phases import PhaseEmbedding
from musicgen.position import PositionalEncoding, Site
from musicgen.position.coordinates import NAMES
from musicgen.random import NoiseKey
from musicgen.validation import check_bool, check_float, check_int


def parameter_count(model: nn.Module) -> int:
    """Return the number of trainable parameters."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


@dataclass(frozen=True)
class ModelState:
    """The state of a causal model after a sequence: passed in and out, never kept in a module."""

    layers: list[LayerState]
    position: Any
    length: Tensor  # [B], number of tokens so far

    def select(self, rows: Tensor) -> ModelState:
        """Return the states of the given rows, which may repeat."""
        layers = [layer.select(rows) for layer in self.layers]
        return ModelState(layers, self.position, self.length[rows])

    @staticmethod
    def cat(states: list[ModelState]) -> ModelState:
        """Concatenate the rows of several states under one noise key."""
        columns = zip(*(state.layers for state in states), strict=True)
        layers = [LayerState.cat(list(column)) for column in columns]
        lengths = torch.cat([state.length for state in states])
        return ModelState(layers, states[0].position, lengths)


class Transformer(nn.Module):
    """A Transformer with a pluggable positional encoding and attention.

    Layers are post-norm without a final norm, as in SPE's music models, or pre-norm with a norm
    before the head, which trains at a wider range of learning rates.

    Args:
        vocab_size: V, padding token included.
        dim: model width D.
        num_heads: H; the head width is K = D / H.
        ff_dim: hidden width of the feed-forward networks.
        dropout: probability, on the embedding, attention output, feed-forward hidden and output.
        layer_dropout: the probability in the layers, if it differs from that on the embedding.
        position: builds the positional encoding from `num_layers, num_heads, width, model_dim`.
            It acts on vectors of that width: K, or the feature map's M.
        attention: builds a layer's attention from `encoded_dim, logit_scale, num_heads, site`.
        span: builds a layer's span; None: no limit on lags.
        causal: whether a token sees only itself and those before it.
        norm_first: pre-norm (Xiong et al. 2020) instead of post-norm.
        short_conv: width of a convolution before each layer's q, k and v (`ShortConvolution`);
            None: no convolution.
        output_gate: gate what attention returns: o ⊙ silu(W x), as in gated linear attention (Yang
            et al. 2024).
        qk_norm: normalise q and k by their root mean square in each head, with a learned scale, as
            Henry et al. (2020) do by their length; before the positional encoding.
        tie_embeddings: the head's weights are the embedding's (Press and Wolf 2017), which is then
            not multiplied by √D, as in GPT-2: the input's gradient, √D times as large, would decide
            the steps of both. Weights of `init_std` begin with small logits at a normalised output.
        init_std: standard deviation of linear and embedding weights.
        cycles: lengths in tokens of the cycles of a `PhaseEmbedding`; none: no such embedding.

    Attributes:
        num_position_columns: number of coordinates that `positions` must have; 1: token indices are
            enough.
        coordinate_names: their names, see `PositionalEncoding`.

    Raises:
        ValueError: a size is invalid, or `position`, `attention` and `span` do not go together.
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        dim: int,
        num_layers: int,
        num_heads: int,
        ff_dim: int,
        position: Callable[..., PositionalEncoding],
        attention: Callable[..., Attention],
        span: Callable[..., AttentionSpan] | None = None,
        dropout: float = 0.1,
        layer_dropout: float | None = None,
        causal: bool = True,
        norm_first: bool = False,
        short_conv: int | None = None,
        output_gate: bool = False,
        qk_norm: bool = False,
        tie_embeddings: bool = False,
        init_std: float = 0.01,
        cycles: Sequence[int] = (),
    ) -> None:
        super().__init__()
        sizes = {"num_layers": num_layers, "num_heads": num_heads, "ff_dim": ff_dim, "dim": dim}
        for name, size in sizes.items():
            check_int(name, size)
        for name, flag in {"causal": causal, "norm_first": norm_first}.items():
            check_bool(name, flag)
        check_float("init_std", init_std)
        check_float("dropout", dropout, below=1)
        check_float("layer_dropout", layer_dropout, below=1, none_means="dropout")
        check_int("short_conv", short_conv, 2, none_means="no convolution")
        check_bool("output_gate", output_gate)
        check_bool("qk_norm", qk_norm)
        check_bool("tie_embeddings", tie_embeddings)
        site = check_compatible(position, attention, span, causal=causal)
        if dim % num_heads:
            divisor = next(heads for heads in range(num_heads, 0, -1) if dim % heads == 0)
            expected = f"expected a divisor of dim={dim}, such as {divisor}"
            raise ParameterError("num_heads", num_heads, expected)
        self.dim, self.causal = dim, causal
        self.embedding = nn.Embedding(vocab_size, dim)
        self.phases = PhaseEmbedding(cycles, dim)
        width = dim // num_heads
        encoded_dim, logit_scale = width, width**-0.5
        encoding_sizes = {"num_layers": num_layers, "num_heads": num_heads, "model_dim": dim}
        if site != Site.FEATURE:
            with parameter_of("position"):
                self.position = position(width=width, **encoding_sizes)
            encoded_dim, logit_scale = self.position.encoded_dim, self.position.logit_scale
        layers = []
        in_layers = dropout if layer_dropout is None else layer_dropout
        for _ in range(num_layers):
            with parameter_of("attention"):
                layer_attention = attention(encoded_dim, logit_scale, num_heads, site=site)
            with parameter_of("span"):
                layer_span = None if span is None else span()
            layers.append(
                Layer(
                    dim,
                    num_heads,
                    ff_dim,
                    in_layers,
                    norm_first,
                    layer_attention,
                    layer_span,
                    short_conv=short_conv,
                    output_gate=output_gate,
                    qk_norm=qk_norm,
                )
            )
        if site == Site.FEATURE:
            with parameter_of("position"):
                self.position = position(width=layer_attention.feature_dim, **encoding_sizes)
        self.layers = nn.ModuleList(layers)
        span_dims = 0 if layer_span is None else layer_span.num_dims
        self.num_position_columns = max(self.position.num_columns, span_dims)
        self.coordinate_names = self.position.coordinate_names
        if span_dims > 1 and len(self.coordinate_names) == 1:
            self.coordinate_names = NAMES[:2]  # a span takes the first coordinates
        self.norm = nn.LayerNorm(dim) if norm_first else nn.Identity()
        self.dropout = Dropout(dropout)
        self.head = nn.Linear(dim, vocab_size)
        self.embedding_scale = 1.0 if tie_embeddings else math.sqrt(dim)
        if tie_embeddings:
            self.head.weight = self.embedding.weight
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=init_std)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(
        self,
        tokens: Tensor,
        *,
        positions: Tensor | None = None,
        key_mask: Tensor | None = None,
        noise: NoiseKey | None = None,
    ) -> Tensor:
        """Compute the logits of the next token: [B, L] -> [B, L, V]. Arguments as of `hidden`."""
        x, _ = self.hidden(tokens, positions=positions, key_mask=key_mask, noise=noise)
        return self.head(x)

    def forward_with_state(
        self,
        tokens: Tensor,
        *,
        positions: Tensor | None = None,
        key_mask: Tensor | None = None,
        noise: NoiseKey | None = None,
        state: ModelState | None = None,
    ) -> tuple[Tensor, ModelState]:
        """Compute the same, and the state after these tokens."""
        options = {"positions": positions, "key_mask": key_mask}
        x, after = self.hidden(tokens, **options, noise=noise, state=state, return_state=True)
        assert after is not None
        return self.head(x), after

    def hidden(
        self,
        tokens: Tensor,
        *,
        positions: Tensor | None = None,
        key_mask: Tensor | None = None,
        noise: NoiseKey | None = None,
        state: ModelState | None = None,
        return_state: bool = False,
    ) -> tuple[Tensor, ModelState | None]:
        """Compute the last layer's output [B, L, D], and the state or None.

        Args:
            tokens: [B, L] token ids.
            positions: [1|B, L, P] coordinates, P ≥ `num_position_columns`; None: token indices,
                which continue from `state`.
            key_mask: [B, L], false at padding.
            noise: key of the positional encoding's random draws; None is a fixed key.
            state: what an earlier call returned for the tokens before these.
        """
        length = tokens.shape[1]
        if positions is None:
            positions = torch.arange(length, device=tokens.device)[None, :, None]
            if state is not None:
                positions = positions + state.length[:, None, None]
        codes, position_state = self.position(
            positions,
            noise=noise or NoiseKey((0,)),
            state=None if state is None else state.position,
        )
        x = self.phases(self.embedding(tokens), positions) * self.embedding_scale
        x = self.dropout(self.position.embed(x, positions))
        mask = AttentionMask(self.causal, key_mask)
        layer_states: list[Any] = []
        for i, (layer, code) in enumerate(zip(self.layers, codes, strict=True)):
            layer_state = None if state is None else state.layers[i]
            x, layer_state = layer(x, positions, code, mask, layer_state, return_state)
            layer_states.append(layer_state)
        x = self.norm(x)
        if not return_state:
            return x, None
        seen = tokens.new_zeros(len(tokens)) if state is None else state.length
        return x, ModelState(layer_states, position_state, seen + length)
