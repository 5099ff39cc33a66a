"""The model: embedding, Transformer layers and a linear head."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from musicgen.attention import Attention, AttentionMask, AttentionSpan
from musicgen.errors import ParameterError, parameter_of
from musicgen.models.compatibility import check_compatible
from musicgen.models.dropout import Dropout
from musicgen.models.heads import ClassificationHead, prepend_class_token
from musicgen.models.layer import ACTIVATIONS, Layer
from musicgen.models.norm import NORMS, normalise
from musicgen.models.phases import PhaseEmbedding
from musicgen.models.state import ModelState
from musicgen.position import LayerCode, PositionalEncoding, Site
from musicgen.position.coordinates import NAMES
from musicgen.random import NoiseKey
from musicgen.validation import check_bool, check_choice, check_float, check_int


def parameter_count(model: nn.Module) -> int:
    """Return the number of trainable parameters."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


class Transformer(nn.Module):
    """A Transformer with a pluggable positional encoding, attention and head.

    Layers are post-norm without a final norm, as in SPE's music models, or pre-norm with a norm
    before the head, which trains at a wider range of learning rates.

    Args:
        vocab_size: V, padding token included; None: the input are vectors of `input_dim` numbers.
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
        attention_dim: width of all heads together, if it differs from `dim`.
        attention_bias: whether the projections of attention have biases.
        activation: of feed-forward networks: relu or gelu.
        norm: layer, or batch, over the tokens that are not padding (`BatchNorm`).
        head: builds the head from `dim, num_outputs`; None: logits of each token's successor.
        num_outputs: of the head; None: `vocab_size`.
        input_dim: C, width of input vectors; a linear layer takes the place of the embedding.

    Attributes:
        num_position_columns: number of coordinates that `positions` must have; 1: token indices are
            enough.
        coordinate_names: their names, see `PositionalEncoding`.
        recompute: whether the backward pass computes each layer again instead of keeping what is
            inside it (activation checkpointing, Chen et al. 2016); false unless it is set.

    Raises:
        ValueError: a size is invalid, or `position`, `attention` and `span` do not go together.
    """

    def __init__(
        self,
        vocab_size: int | None,
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
        attention_dim: int | None = None,
        attention_bias: bool = True,
        activation: str = "relu",
        norm: str = "layer",
        head: Callable[..., ClassificationHead] | None = None,
        num_outputs: int | None = None,
        input_dim: int | None = None,
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
        check_int("attention_dim", attention_dim, none_means="dim")
        check_bool("attention_bias", attention_bias)
        check_choice("activation", activation, ACTIVATIONS)
        check_choice("norm", norm, NORMS)
        if causal and norm == "batch":  # a token would depend on later ones
            raise ParameterError("norm", norm, "expected layer with causal=true")
        if tie_embeddings and (head is not None or vocab_size is None):
            raise ParameterError("tie_embeddings", True, "expected false with this head or input")
        site = check_compatible(position, attention, span, causal=causal)
        of_heads, name = (dim, "dim") if attention_dim is None else (attention_dim, "attention_dim")
        if of_heads % num_heads:
            divisor = next(heads for heads in range(num_heads, 0, -1) if of_heads % heads == 0)
            expected = f"expected a divisor of {name}={of_heads}, such as {divisor}"
            raise ParameterError("num_heads", num_heads, expected)
        self.dim, self.causal, self.recompute = dim, causal, False
        self.embedding: Any
        if vocab_size is None:
            assert input_dim is not None
            self.embedding = nn.Linear(input_dim, dim)
        else:
            self.embedding = nn.Embedding(vocab_size, dim)
        self.phases = PhaseEmbedding(cycles, dim)
        width = of_heads // num_heads
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
                    attention_dim=attention_dim,
                    attention_bias=attention_bias,
                    activation=activation,
                    norm=norm,
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
        self.norm = NORMS[norm](dim) if norm_first else nn.Identity()
        self.dropout = Dropout(dropout)
        outputs = vocab_size if num_outputs is None else num_outputs
        assert outputs is not None
        with parameter_of("head"):
            self.head: Any = nn.Linear(dim, outputs) if head is None else head(dim, outputs)
        self.class_token: nn.Parameter | None = None
        if head is not None and self.head.pool == "class_token":
            if causal:
                expected = "expected last or mean with causal=true, as it sees no later token"
                raise ParameterError("head.pool", "class_token", expected)
            self.class_token = nn.Parameter(torch.zeros(dim))
        self.embedding_scale = 1.0 if tie_embeddings or vocab_size is None else math.sqrt(dim)
        if tie_embeddings:
            self.head.weight = self.embedding.weight
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=init_std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(
        self,
        tokens: Tensor,
        *,
        positions: Tensor | None = None,
        key_mask: Tensor | None = None,
        noise: NoiseKey | None = None,
    ) -> Tensor:
        """Compute the logits of the next token: [B, L] -> [B, L, V]. Arguments as of `hidden`.

        Another head computes what it says, such as class logits [B, C].
        """
        x, _ = self.hidden(tokens, positions=positions, key_mask=key_mask, noise=noise)
        if isinstance(self.head, ClassificationHead):
            return self.head(x, key_mask)
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

        A class token of the head comes first, as an additional token at the coordinates −1.

        Args:
            tokens: [B, L] token ids, or input vectors [B, L, C].
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
        x = self.phases(self.embedding(tokens), positions) * self.embedding_scale
        if self.class_token is not None:
            x, positions, key_mask = prepend_class_token(self.class_token, x, positions, key_mask)
        codes, position_state = self.position(
            positions,
            noise=noise or NoiseKey((0,)),
            state=None if state is None else state.position,
        )
        x = self.dropout(self.position.embed(x, positions))
        mask = AttentionMask(self.causal, key_mask)
        layer_states: list[Any] = []
        for i, (layer, code) in enumerate(zip(self.layers, codes, strict=True)):
            layer_state = None if state is None else state.layers[i]
            arguments = (x, positions, code, mask, layer_state, return_state)
            if self.recompute and torch.is_grad_enabled():
                x, layer_state = checkpoint(_run, layer, *arguments, use_reentrant=False)
            else:
                x, layer_state = layer(*arguments)
            layer_states.append(layer_state)
        x = normalise(self.norm, x, key_mask)
        if not return_state:
            return x, None
        seen = tokens.new_zeros(len(tokens)) if state is None else state.length
        return x, ModelState(layer_states, position_state, seen + length)


def _run(layer: Layer, x: Tensor, positions: Tensor, code: LayerCode, *arguments: Any) -> Any:
    """Call a layer as if it were the first time."""
    return layer(x, positions, code.repeatable(), *arguments)
