"""The model: inputs, Transformer layers, a head, and a copy head behind it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from musicgen.attention import Attention, AttentionMask, GaussianSpan
from musicgen.errors import ParameterError, UserError, parameter_of
from musicgen.models.compatibility import check_compatible
from musicgen.models.copy_head import CopyHead, CopyState
from musicgen.models.layer import NORMS, Layer, LayerSettings
from musicgen.models.state import ModelState
from musicgen.position import LayerCode, PositionalEncoding, Site
from musicgen.random import NoiseKey
from musicgen.validation import check_bool, check_int, check_settings


def parameter_count(model: nn.Module) -> int:
    """Return the number of trainable parameters."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def with_recent(
    tokens: Tensor, key_mask: Tensor | None, recent: Tensor | None, size: int
) -> Tensor:
    """Return the ids plus one of tokens [B, L] and of `size` tokens before: [B, size + L].

    0 stands for padding and for what is before the beginning.

    Args:
        key_mask: [B, L], false at padding.
        recent: the last `size` of what this returned for the tokens before; None: there are none.
    """
    numbers = tokens + 1
    if key_mask is not None:
        numbers = numbers * key_mask
    if recent is None:
        recent = numbers.new_zeros(len(numbers), size)
    return torch.cat((recent, numbers), dim=1)


class LaggedEmbedding(nn.Embedding):
    """One vector for each token of the vocabulary: of the token that is `lag` tokens earlier.

    In layouts that repeat, it tells every layer what stands in the same place of an earlier frame
    or bar, such as the pitch that a voice a bar ahead has now, which linear attention finds only
    with difficulty. Before the beginning stands the last token of the vocabulary, padding.
    """

    def __init__(self, lag: int, vocab_size: int, dim: int) -> None:
        check_int("lags", lag)
        super().__init__(vocab_size, dim)
        self.lag = lag

    def read(self, positions: Tensor, recent: Tensor) -> Tensor:
        """Return the tokens, of what `with_recent` returned. [1|B, L, P], [B, N + L] -> [B, L]."""
        length = positions.shape[1]
        first = recent.shape[1] - length - self.lag
        return (recent[:, first : first + length] - 1) % self.num_embeddings


class CycleEmbedding(nn.Embedding):
    """One vector for each place in a cycle of tokens: of the token index modulo its length.

    It tells tokens apart in layouts that repeat, as of voices and frames of a beat, at any length.
    """

    def read(self, positions: Tensor, recent: Tensor | None) -> Tensor:
        return positions[..., 0].long() % self.num_embeddings


class SequenceHead(nn.Module):
    """Interface of a head that makes one output of a whole sequence, such as a classifier.

    Its `forward` takes the last layer's output [B, L, D] and the mask [B, L], false at padding.

    Attributes:
        pool: the vector that it reads. For `class_token` the model puts a learned token before the
            sequence (Devlin et al. 2019); other values are known to the head alone.
    """

    pool: str


class Transformer(nn.Module):
    """A Transformer with a pluggable positional encoding, attention and head.

    Layers are post-norm without a final norm, as in SPE's music models, or pre-norm with a norm
    before the head, which trains at a wider range of learning rates.

    Args:
        vocab_size: V, padding token included; None: the input are vectors of `input_dim` numbers.
        position: builds the positional encoding from `num_layers, num_heads, width, model_dim`.
            It acts on vectors of that width: K, or the feature map's M.
        attention: builds a layer's attention from `encoded_dim, logit_scale, num_heads, site`.
        span: builds a layer's span; None: no limit on lags.
        causal: whether a token sees only itself and those before it.
        tie_embeddings: the head's weights are the embedding's (Press and Wolf 2017), which is then
            not multiplied by √D, as in GPT-2: the input's gradient, √D times as large, would decide
            the steps of both. Weights of `init_std` begin with small logits at a normalised output.
        init_std: standard deviation of linear and embedding weights.
        cycles: lengths in tokens, 2 or more, each of a `CycleEmbedding`.
        lags: distances in tokens, each of a `LaggedEmbedding`.
        match_classes: of each token, for a `CopyHead` that sees matches. [V]
        head: builds the head from `dim, num_outputs`; None: logits of each token's successor.
        num_outputs: of the head; None: `vocab_size`.
        input_dim: C, width of input vectors; a linear layer takes the place of the embedding.
        copy: arguments of a `CopyHead`, which then mixes logits with earlier tokens' successors;
            None: no such head. The model's logits are then logarithms of probabilities.
        layer: `dim`, `num_heads`, `ff_dim` and the other fields of `LayerSettings`.

    Attributes:
        inputs: the modules whose vectors of a token are summed, by name. The first one, the
            embedding, is called with the tokens, the others with what their `read` returns.
        num_position_columns: number of coordinates in `positions`; 1: token indices are enough.
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
        num_layers: int,
        position: Callable[..., PositionalEncoding],
        attention: Callable[..., Attention],
        span: Callable[..., GaussianSpan] | None = None,
        causal: bool = True,
        tie_embeddings: bool = False,
        init_std: float = 0.01,
        cycles: Sequence[int] = (),
        lags: Sequence[int] = (),
        match_classes: Sequence[int] | None = None,
        head: Callable[..., SequenceHead] | None = None,
        num_outputs: int | None = None,
        input_dim: int | None = None,
        copy: Mapping[str, Any] | None = None,
        **layer: Any,
    ) -> None:
        super().__init__()
        settings = LayerSettings(**layer)
        check_int("num_layers", num_layers)
        check_bool("causal", causal)
        check_bool("tie_embeddings", tie_embeddings)
        if causal and settings.norm == "batch":  # a token would depend on later ones
            raise ParameterError("norm", settings.norm, "expected layer with causal=true")
        if tie_embeddings and (head is not None or vocab_size is None):
            raise ParameterError("tie_embeddings", True, "expected false with this head or input")
        site = check_compatible(position, attention, span, causal=causal)
        dim, num_heads, width = settings.dim, settings.num_heads, settings.head_dim

        def build_position(width: int) -> PositionalEncoding:
            with parameter_of("position"):
                return position(
                    num_layers=num_layers, num_heads=num_heads, width=width, model_dim=dim
                )

        def build_layers(encoded_dim: int, logit_scale: float) -> list[Layer]:
            layers = []
            for _ in range(num_layers):
                with parameter_of("attention"):
                    layer_attention = attention(encoded_dim, logit_scale, num_heads, site=site)
                with parameter_of("span"):
                    layer_span = None if span is None else span()
                layers.append(Layer(settings, layer_attention, layer_span))
            return layers

        self.dim, self.causal, self.recompute = dim, causal, False
        if lags and (vocab_size is None or not causal):
            expected = "expected [] in models of vectors, and of all tokens at once"
            raise ParameterError("lags", list(lags), expected)
        if vocab_size is None:
            assert input_dim is not None
            inputs: dict[str, nn.Module] = {"vector": nn.Linear(input_dim, dim)}
        else:
            inputs = {"embedding": nn.Embedding(vocab_size, dim)}
            inputs |= {f"lag_{lag}": LaggedEmbedding(lag, vocab_size, dim) for lag in lags}
        inputs |= {f"cycle_{length}": CycleEmbedding(length, dim) for length in cycles}
        self.inputs = nn.ModuleDict(inputs)
        self.longest_lag = max(lags, default=0)
        if site == Site.FEATURE:  # its width is that of the feature map
            layers = build_layers(width, width**-0.5)
            self.position = build_position(layers[0].attention.feature_dim)
        else:
            self.position = build_position(width)
            layers = build_layers(self.position.encoded_dim, self.position.logit_scale)
        self.layers = nn.ModuleList(layers)
        span_dims = 0 if layers[0].span is None else layers[0].span.num_dims
        self.num_position_columns = max(self.position.num_columns, span_dims)
        span_names = ("index", "time")[:span_dims]  # a span takes the first coordinates
        self.coordinate_names = max(self.position.coordinate_names, span_names, key=len)
        self.norm = NORMS[settings.norm](dim) if settings.norm_first else None
        self.dropout = nn.Dropout(settings.dropout)
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
        self.match_classes = match_classes
        self.copy_head: CopyHead | None = None
        if copy is not None:
            self.add_copy_head(copy)

    @property
    def embedding(self) -> Any:
        """The first input: the token embedding, or the linear map of input vectors."""
        return next(iter(self.inputs.values()))

    def add_copy_head(self, settings: Mapping[str, Any]) -> None:
        """Add a `CopyHead` of these settings, and the coordinate that it reads."""
        if not self.causal or not isinstance(self.embedding, nn.Embedding):
            expected = "expected null: only a causal model of tokens predicts the next one"
            raise ParameterError("copy", dict(settings), expected)
        sizes = self.dim, self.embedding.num_embeddings
        build = partial(CopyHead, *sizes, classes=self.match_classes)
        check_settings("copy", settings, build)
        with parameter_of("copy"):
            self.copy_head = build(**settings)
        names, name = self.coordinate_names, self.copy_head.coordinate
        if name not in names:
            names = (*("index", "time"), *names[2:], name)
        self.coordinate_names, self.copy_column = names, names.index(name)
        self.num_position_columns = max(self.num_position_columns, self.copy_column + 1)

    def forward(
        self,
        tokens: Tensor,
        *,
        targets: Tensor | None = None,
        positions: Tensor | None = None,
        key_mask: Tensor | None = None,
        noise: NoiseKey | None = None,
    ) -> Tensor:
        """Compute the logits of the next token: [B, L] -> [B, L, V].

        Another head computes what it says, such as class logits [B, C].

        Args:
            targets: [B, L] ids, with a copy head: the log-probabilities of these alone, with copies
                and without, [2, B, L].
            positions, key_mask, noise: those of `hidden`.
        """
        x, _ = self.hidden(tokens, positions=positions, key_mask=key_mask, noise=noise)
        if isinstance(self.head, SequenceHead):
            return self.head(x, key_mask)
        options = {"targets": targets, "key_mask": key_mask}
        return self._with_copies(self.head(x), x, tokens, positions, None, **options)[0]

    def forward_with_state(
        self,
        tokens: Tensor,
        *,
        positions: Tensor | None = None,
        key_mask: Tensor | None = None,
        noise: NoiseKey | None = None,
        state: ModelState | None = None,
        last: bool = False,
        overwrite: bool = False,
    ) -> tuple[Tensor, ModelState]:
        """Compute the same, and the state after these tokens.

        Args:
            positions, key_mask, noise, state: those of `hidden`.
            last: compute the logits of the last token only, [B, 1, V].
            overwrite: reuse the memory of `state`, which is invalid then; without gradients only.
        """
        options: dict[str, Any] = {"return_state": True, "overwrite": overwrite}
        x, after = self.hidden(
            tokens, positions=positions, key_mask=key_mask, noise=noise, state=state, **options
        )
        assert after is not None
        logits = self.head(x[:, -1:] if last else x)
        options["key_mask"] = key_mask
        logits, copied = self._with_copies(logits, x, tokens, positions, state, **options)
        return logits, replace(after, copied=copied)

    def hidden(
        self,
        tokens: Tensor,
        *,
        positions: Tensor | None = None,
        key_mask: Tensor | None = None,
        noise: NoiseKey | None = None,
        state: ModelState | None = None,
        return_state: bool = False,
        overwrite: bool = False,
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
            overwrite: as of `forward_with_state`.
        """
        positions = self._positions(tokens, positions, state)
        recent = None
        if self.longest_lag:
            before = None if state is None else state.recent
            recent = with_recent(tokens, key_mask, before, self.longest_lag)
        x = self.embedding(tokens)
        for module in list[Any](self.inputs.values())[1:]:
            x = x + module(module.read(positions, recent))
        x = x * self.embedding_scale
        if self.class_token is not None:
            x = torch.cat((self.class_token.to(x.dtype).expand(len(x), 1, -1), x), dim=1)
            positions = F.pad(positions, (0, 0, 1, 0), value=-1)
            key_mask = None if key_mask is None else F.pad(key_mask, (1, 0), value=True)
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
            arguments = (x, positions, code, mask, layer_state, return_state, overwrite)
            if self.recompute and torch.is_grad_enabled():
                x, layer_state = checkpoint(_run, layer, *arguments, use_reentrant=False)
            else:
                x, layer_state = layer(*arguments)
            layer_states.append(layer_state)
        if self.norm is not None:
            x = self.norm(x, key_mask)
        if not return_state:
            return x, None
        if recent is not None:
            recent = recent[:, -self.longest_lag :].clone()
        length = self._start(tokens, state) + tokens.shape[1]
        return x, ModelState(layer_states, position_state, length, recent=recent)

    def _with_copies(
        self,
        logits: Tensor,
        x: Tensor,
        tokens: Tensor,
        positions: Tensor | None,
        state: ModelState | None,
        **options: Any,
    ) -> tuple[Tensor, CopyState | None]:
        """Return what a copy head, if there is one, makes of logits, and its state."""
        if self.copy_head is None:
            return logits, None
        bars = self._positions(tokens, positions, state)[..., self.copy_column]
        options["state"] = None if state is None else state.copied
        return self.copy_head(logits, x, tokens, bars, self._start(tokens, state), **options)

    def _start(self, tokens: Tensor, state: ModelState | None) -> Tensor:
        """Return the number of tokens before these: [B]."""
        return tokens.new_zeros(len(tokens)) if state is None else state.length

    def _positions(
        self, tokens: Tensor, positions: Tensor | None, state: ModelState | None
    ) -> Tensor:
        """Return positions that the model can read: those given, or token indices."""
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)[None, :, None]
            if state is not None:
                positions = positions + state.length[:, None, None]
        if positions.shape[-1] < self.num_position_columns:
            raise UserError(
                f"the model reads {self.num_position_columns} coordinates of each position, "
                f"{', '.join(self.coordinate_names)}, but positions have {positions.shape[-1]}"
            )
        return positions


def _run(layer: Layer, x: Tensor, positions: Tensor, code: LayerCode, *arguments: Any) -> Any:
    """Call a layer as if it were the first time."""
    return layer(x, positions, code.repeatable(), *arguments)
