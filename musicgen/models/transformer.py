"""The model: embedding, Transformer layers, a linear head."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from musicgen.attention import AttentionKernel, AttentionSpan
from musicgen.errors import UserError
from musicgen.models.compatibility import check_compatible
from musicgen.models.dropout import Dropout
from musicgen.position import LayerCode, NoiseKey, PositionalEncoding, Site
from musicgen.values import number, whole

_EVALUATION_NOISE = NoiseKey((0,))


@dataclass(frozen=True)
class ModelState:
    """A causal model's memory of a sequence: passed in and out, never kept in a module."""

    layers: list[Any]
    position: Any
    length: Tensor  # [B] tokens seen

    def select(self, rows: Tensor) -> ModelState:
        """The states of the given rows, which may repeat."""
        layers = [layer.select(rows) for layer in self.layers]
        return ModelState(layers, self.position, self.length[rows])

    @staticmethod
    def cat(states: list[ModelState]) -> ModelState:
        """Rows of several states under one noise key, one after the other."""
        columns = zip(*(state.layers for state in states), strict=True)
        layers = [type(column[0]).cat(list(column)) for column in columns]
        lengths = torch.cat([state.length for state in states])
        return ModelState(layers, states[0].position, lengths)


class Transformer(nn.Module):
    """A Transformer with a pluggable positional encoding and attention.

    Layers are post-norm, as published for SPE's music models, where no norm follows the last one;
    or pre-norm, with a norm before the head, which learns at many more learning rates.

    Args:
        vocab_size: V, padding token included.
        dim: model width D.
        num_layers: number of layers.
        num_heads: H; the head width is K = D / H.
        ff_dim: hidden width of the feed-forward networks.
        dropout: probability, on the embedding, attention output, feed-forward hidden and output.
        position: builds the positional encoding from `num_layers, num_heads, width, model_dim`.
            The width is that of what it acts on: K, or the feature map's M.
        attention: builds an attention kernel from `encoded_dim, logit_scale, num_heads, site`.
        span: builds a layer's span; None lets every token see all others, or all before it.
        causal: whether a token sees only itself and those before it.
        norm_first: pre-norm (Xiong et al. 2020) instead of post-norm.
        init_std: standard deviation of linear and embedding weights.

    Raises:
        UserError: a size is of no use, `position`, `attention` and `span` do not go together, or
            `num_heads` does not divide `dim`.
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
        attention: Callable[..., AttentionKernel],
        span: Callable[..., AttentionSpan] | None = None,
        dropout: float = 0.1,
        causal: bool = True,
        norm_first: bool = False,
        init_std: float = 0.01,
    ) -> None:
        super().__init__()
        whole("model.dim", dim)
        whole("model.num_layers", num_layers)
        whole("model.num_heads", num_heads)
        whole("model.ff_dim", ff_dim)
        number("model.dropout", dropout, below=1)
        site = check_compatible(position, attention, span, causal=causal)
        if dim % num_heads:
            divisor = next(heads for heads in range(num_heads, 0, -1) if dim % heads == 0)
            raise UserError(
                f"model.num_heads={num_heads} does not divide model.dim={dim}; "
                f"give a divisor, such as model.num_heads={divisor}"
            )
        self.dim, self.causal = dim, causal
        self.embedding = nn.Embedding(vocab_size, dim)
        width = dim // num_heads
        sizes = {"num_layers": num_layers, "num_heads": num_heads, "model_dim": dim}
        encoded_dim, logit_scale = width, width**-0.5
        if site != Site.FEATURE:
            self.position = position(width=width, **sizes)
            encoded_dim, logit_scale = self.position.encoded_dim, self.position.logit_scale
        layers = [
            Layer(
                dim,
                num_heads,
                ff_dim,
                dropout,
                norm_first,
                attention(
                    encoded_dim=encoded_dim,
                    logit_scale=logit_scale,
                    num_heads=num_heads,
                    site=site,
                ),
                None if span is None else span(),
            )
            for _ in range(num_layers)
        ]
        if site == Site.FEATURE:  # built for the width of the feature maps
            self.position = position(width=layers[0].kernel.feature_dim, **sizes)
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(dim) if norm_first else nn.Identity()
        self.dropout = Dropout(dropout)
        self.head = nn.Linear(dim, vocab_size)
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
        state: ModelState | None = None,
        return_state: bool = False,
    ) -> Any:
        """Logits of the next token.

        Args:
            tokens: [B, L] token ids.
            positions: [1|B, L, P] coordinates; None counts tokens, on from `state`.
            key_mask: [B, L], false at padding.
            noise: names the random draws of the positional encoding; None is a fixed key.
            state: what an earlier call returned for the tokens before these.
            return_state: also return the state after these tokens.

        Returns:
            Logits [B, L, V]; with `return_state`, a pair of these and the `ModelState`.
        """
        x, state = self.hidden(
            tokens,
            positions=positions,
            key_mask=key_mask,
            noise=noise,
            state=state,
            return_state=return_state,
        )
        logits = self.head(x)
        return (logits, state) if return_state else logits

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
        """The last layer's output [B, L, D], and the state if asked for. Arguments as `forward`."""
        batch, length = tokens.shape
        if positions is None:
            positions = torch.arange(length, device=tokens.device)[None, :, None]
            if state is not None:
                positions = positions + state.length[:, None, None]
        codes, position_state = self.position(
            positions,
            noise=noise or _EVALUATION_NOISE,
            state=None if state is None else state.position,
        )
        x = self.embedding(tokens) * math.sqrt(self.dim)
        x = self.dropout(self.position.embed(x, positions))
        layer_states: list[Any] = []
        for i, (layer, code) in enumerate(zip(self.layers, codes, strict=True)):
            x, layer_state = layer(
                x,
                positions,
                code,
                causal=self.causal,
                key_mask=key_mask,
                state=None if state is None else state.layers[i],
                return_state=return_state,
            )
            layer_states.append(layer_state)
        x = self.norm(x)
        if not return_state:
            return x, None
        seen = tokens.new_zeros(batch) if state is None else state.length
        return x, ModelState(layer_states, position_state, seen + length)


class Layer(nn.Module):
    """Attention, then a feed-forward network, each with a residual connection and a norm.

    The norm comes after the sum, or first: before what is added to the residual stream.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        ff_dim: int,
        dropout: float,
        norm_first: bool,
        kernel: AttentionKernel,
        span: AttentionSpan | None,
    ) -> None:
        super().__init__()
        self.num_heads, self.norm_first = num_heads, norm_first
        self.kernel, self.span = kernel, span
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.attention_norm, self.ff_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.ff_in, self.ff_out = nn.Linear(dim, ff_dim), nn.Linear(ff_dim, dim)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        code: LayerCode,
        *,
        causal: bool,
        key_mask: Tensor | None,
        state: Any,
        return_state: bool,
    ) -> tuple[Tensor, Any]:
        """[B, L, D] -> [B, L, D], and the kernel's state."""
        seen = self.attention_norm(x) if self.norm_first else x
        q, k, v = self.qkv(seen).unflatten(-1, (3, self.num_heads, -1)).unbind(2)  # [B, L, H, K]
        limits = {} if self.span is None else {"span": self.span(positions)}
        if state is not None and x.shape[1] == 1 and key_mask is None:
            mixed, state = self.kernel.step(q, k, v, code, state, **limits)
        else:
            mixed, state = self.kernel(
                q,
                k,
                v,
                code,
                causal=causal,
                key_mask=key_mask,
                state=state,
                return_state=return_state,
                **limits,
            )
        x = x + self.dropout(self.out(mixed.flatten(2).to(x.dtype)))
        x, seen = (x, self.ff_norm(x)) if self.norm_first else (self.attention_norm(x),) * 2
        hidden = self.dropout(F.relu(self.ff_in(seen)))
        x = x + self.dropout(self.ff_out(hidden))
        return x if self.norm_first else self.ff_norm(x), state
