"""The model: inputs, Transformer layers, a head, and optionally a copy head after it."""

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
from musicgen.errors import ParameterError
from musicgen.models.compatibility import check_compatible
from musicgen.models.copy_attention import CopySettings, CopyState
from musicgen.models.copy_head import CopyHead, build_copy_head
from musicgen.models.inputs import (
    MusicalKeyEmbedding,
    SequenceHead,
    build_class_token,
    build_head,
    build_inputs,
    draw_weights,
    find_positions,
    with_recent,
)
from musicgen.models.layer import (
    NORMS,
    Layer,
    LayerSettings,
    build_layers,
    build_position,
    coordinates_of,
)
from musicgen.models.outputs import attention_matrices, hidden_states
from musicgen.models.state import ModelState
from musicgen.position import LayerCode, PositionalEncoding, Site
from musicgen.random import NoiseKey
from musicgen.validation import check_bool, check_int


def parameter_count(model: nn.Module) -> int:
    """Return the number of trainable parameters."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


class Transformer(nn.Module):
    """A Transformer with a pluggable positional encoding, attention and head.

    Layers are post-norm without a final norm, as in SPE's music models, or pre-norm with a norm
    before the head, which trains at a wider range of learning rates.

    Args:
        vocab_size: V, padding token included; None: the input are vectors of `input_dim` numbers.
        num_layers: number of layers.
        position: builds the positional encoding from `num_layers, num_heads, width, model_dim`.
            The width is that of the vectors to encode: K, or the feature map's M.
        attention: builds the attention of a layer from `encoded_dim, logit_scale, num_heads, site`.
        span: builds the span of a layer; None: no limit on lags.
        causal: whether a token sees only itself and earlier tokens.
        tie_embeddings: use the weights of the embedding for the head (Press and Wolf 2017). As in
            GPT-2, the embedding is then not multiplied by √D: gradients from the input would be √D
            times as large, and would dominate.
        init_std: standard deviation of linear and embedding weights.
        cycles: lengths in tokens, 2 or more, each with a `CycleEmbedding`.
        lags: distances in tokens, each with a `LaggedEmbedding`.
        musical_key: whether the model has a `MusicalKeyEmbedding`, for tokens with keys.
        match_classes: classes of tokens [V], for the matches of a `CopyHead`.
        head: builds the head from `dim, num_outputs`; None: a linear layer to next-token logits.
        num_outputs: number of outputs of the head; None: `vocab_size`.
        input_dim: C, width of input vectors; a linear layer takes the place of the embedding.
        copy: arguments of a `CopyHead`; None: no copy head. With one, the model returns
            log-probabilities instead of logits.
        coordinates: returns coordinates of ids by name, as `Coordinates.of` does: ids [L] and names
            -> [L, len(names)]. Where no positions are given, they are computed by it; None: only
            token indices are known.
        layer: `dim`, `num_heads`, `ff_dim` and the other fields of `LayerSettings`.

    Attributes:
        inputs: the modules whose outputs are summed per token, by name. The first one, the
            embedding, is called with the tokens, the others with the result of their `read`.
        num_position_columns: number of coordinates in `positions`; 1: token indices are enough.
        coordinate_names: names of the coordinates (see `PositionalEncoding`).
        recompute: whether the backward pass computes each layer again instead of keeping its
            activations (activation checkpointing, Chen et al. 2016); false unless it is set.

    Raises:
        UserError: a size is invalid, or `position`, `attention` and `span` are not compatible.
    """

    def __init__(  # noqa: PLR0913 - filled from conf/model/
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
        musical_key: bool = False,
        match_classes: Sequence[int] | None = None,
        head: Callable[..., SequenceHead] | None = None,
        num_outputs: int | None = None,
        input_dim: int | None = None,
        copy: Mapping[str, Any] | None = None,
        coordinates: Callable[..., Any] | None = None,
        **layer: Any,
    ) -> None:
        super().__init__()
        settings = LayerSettings(**layer)
        check_int("num_layers", num_layers, maximum=1000)
        check_bool("causal", causal)
        check_bool("tie_embeddings", tie_embeddings)
        check_bool("musical_key", musical_key)
        if tie_embeddings and (head is not None or vocab_size is None):
            raise ParameterError("tie_embeddings", True, "expected false with this head or input")
        site = check_compatible(position, attention, span, causal=causal, norm=settings.norm)
        self.dim, self.causal, self.recompute = settings.dim, causal, False
        self.inputs = build_inputs(
            vocab_size, self.dim, input_dim=input_dim, lags=lags, cycles=cycles, causal=causal
        )
        self.longest_lag = max(lags, default=0)
        position_for = partial(build_position, position, settings, num_layers)
        layers_for = partial(build_layers, attention, span, settings, num_layers, site)
        if site == Site.FEATURE:  # the width to encode is that of the feature map
            layers = layers_for(settings.head_dim, settings.head_dim**-0.5)
            self.position = position_for(layers[0].attention.feature_dim)
        else:
            self.position = position_for(settings.head_dim)
            layers = layers_for(self.position.encoded_dim, self.position.logit_scale)
        self.layers = nn.ModuleList(layers)
        self.num_position_columns, self.coordinate_names = coordinates_of(self.position, layers[0])
        if musical_key:
            self.inputs["key"] = MusicalKeyEmbedding(self._column_of("key"), self.dim)
        self.norm = NORMS[settings.norm](self.dim) if settings.norm_first else None
        self.dropout = nn.Dropout(settings.dropout)
        self.head = build_head(head, self.dim, vocab_size if num_outputs is None else num_outputs)
        self.class_token = build_class_token(self.head, self.dim, self.causal)
        self.embedding_scale = 1.0 if tie_embeddings or vocab_size is None else math.sqrt(self.dim)
        if tie_embeddings:
            self.head.weight = self.embedding.weight
        draw_weights(self, init_std)
        self.match_classes, self.coordinates = match_classes, coordinates
        self.copy_head: CopyHead | None = None
        if copy is not None:
            self.add_copy_head(copy)

    @property
    def embedding(self) -> Any:
        """The first input: the token embedding, or the linear layer on input vectors."""
        return next(iter(self.inputs.values()))

    def add_copy_head(self, settings: Mapping[str, Any]) -> None:
        """Add a `CopyHead` with these settings, and the coordinate that it reads.

        Raises:
            ParameterError: a setting is invalid, or the model is not a causal model of tokens.
        """
        if not self.causal or not isinstance(self.embedding, nn.Embedding):
            expected = "expected null: only a causal model of tokens predicts the next one"
            raise ParameterError("copy", dict(settings), expected)
        sizes = self.dim, self.embedding.num_embeddings
        self.copy_head = build_copy_head(settings, *sizes, self.match_classes)
        self.copy_column = self._column_of(self.copy_head.coordinate)

    def _column_of(self, name: str) -> int:
        """Return the column of a coordinate in positions, which have it from now on."""
        if name not in self.coordinate_names:
            self.coordinate_names = ("index", "time", *self.coordinate_names[2:], name)
        column = self.coordinate_names.index(name)
        self.num_position_columns = max(self.num_position_columns, column + 1)
        return column

    def draw(self, key: NoiseKey, tokens: Tensor, positions: Tensor | None = None) -> Any:
        """Return the noise of the positional encoding for a forward pass, a function of the key.

        It is passed as `noise` to a compiled forward pass, whose graph then has no random
        generator. Without `positions`, no value on a GPU is read.

        Args:
            tokens: [B, L].
            positions: [1|B, L, P]; None: token indices.
        """
        if positions is None:
            positions = torch.arange(tokens.shape[1])[None, :, None]
        if self.class_token is not None:
            positions = F.pad(positions, (0, 0, 1, 0), value=-1)
        return self.position.draw(key, positions, tokens.device, batch_size=len(tokens))

    def forward(
        self,
        tokens: Tensor,
        *,
        targets: Tensor | None = None,
        positions: Tensor | None = None,
        key_mask: Tensor | None = None,
        noise: Any = None,
    ) -> Tensor:
        """Return the logits of the next tokens: [B, L] -> [B, L, V].

        With a `SequenceHead`, return its output, such as the logits of classes [B, C].

        Args:
            targets: ids [B, L], only with a copy head. Then only their log-probabilities are
                returned, with copies and without: [2, B, L].
            positions, key_mask, noise: as in `hidden`.
        """
        positions = self._positions(tokens, positions, None)
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
        copy_settings: CopySettings | None = None,
        last: bool = False,
        overwrite: bool = False,
    ) -> tuple[Tensor, ModelState]:
        """Return the logits of the next tokens [B, L, V], and the state after these tokens.

        Args:
            positions, key_mask, noise, state: as in `hidden`.
            copy_settings: settings of the copy head, for tokens after a state (see
                `CopyHead.forward`).
            last: return the logits after the last token only, [B, 1, V].
            overwrite: reuse the memory of `state`, which is invalid then; without gradients only.
        """
        positions = self._positions(tokens, positions, state)
        x, after = self.hidden(
            tokens,
            positions=positions,
            key_mask=key_mask,
            noise=noise,
            state=state,
            return_state=True,
            overwrite=overwrite,
        )
        assert after is not None
        logits = self.head(x[:, -1:] if last else x)
        log_p, copied = self._with_copies(
            logits,
            x,
            tokens,
            positions,
            state,
            key_mask=key_mask,
            settings=copy_settings,
            return_state=True,
            overwrite=overwrite,
        )
        return log_p, replace(after, copied=copied)

    def _with_copies(
        self,
        logits: Tensor,
        x: Tensor,
        tokens: Tensor,
        positions: Tensor,
        state: ModelState | None,
        **options: Any,
    ) -> tuple[Tensor, CopyState | None]:
        """Return the output of the copy head and its state; without one, the logits and None."""
        if self.copy_head is None:
            return logits, None
        bars = positions[..., self.copy_column]
        before = None if state is None else state.copied
        start = self._start(tokens, state)
        return self.copy_head(logits, x, tokens, bars, start, state=before, **options)

    def hidden(
        self,
        tokens: Tensor,
        *,
        positions: Tensor | None = None,
        key_mask: Tensor | None = None,
        noise: Any = None,
        state: ModelState | None = None,
        return_state: bool = False,
        overwrite: bool = False,
    ) -> tuple[Tensor, ModelState | None]:
        """Return the output of the last layer [B, L, D], and the state after these tokens.

        With a class token, the output is [B, 1 + L, D]. The class token is first, and all its
        coordinates are −1.

        Args:
            tokens: token ids [B, L], or input vectors [B, L, C].
            positions: coordinates [1|B, L, P], P ≥ `num_position_columns`. None: token indices,
                which continue from `state`; other coordinates are computed from whole sequences of
                ids, with bars of four quarters for tokens without bars.
            key_mask: [B, L], false at padding.
            noise: noise key of the positional encoding, or what `draw` returned for one. None: the
                key of `state`; without one a fixed key in evaluation mode, and in train mode a new
                key for each call, as training on one draw would learn that draw.
            state: what an earlier call returned for the tokens before these.
            return_state: also return the state; else None is returned in its place.
            overwrite: as in `forward_with_state`.
        """
        positions = self._positions(tokens, positions, state)
        before = None if state is None else state.recent
        recent = with_recent(tokens, key_mask, before, self.longest_lag)
        x = self._embedded(tokens, positions, recent)
        if self.class_token is not None:
            x = torch.cat((self.class_token.to(x.dtype).expand(len(x), 1, -1), x), dim=1)
            positions = F.pad(positions, (0, 0, 1, 0), value=-1)
            key_mask = None if key_mask is None else F.pad(key_mask, (1, 0), value=True)
        position_state = None if state is None else state.position
        noise, key = self._noise(noise, tokens, positions, state)
        codes, position_state = self.position(positions, noise=noise, state=position_state)
        x = self.dropout(self.position.embed(x, positions))
        mask = AttentionMask(self.causal, key_mask)
        layer_states: list[Any] = []
        recompute = self.recompute and torch.is_grad_enabled()  # the backward pass runs them again
        for i, (layer, code) in enumerate(zip(self.layers, codes, strict=True)):
            layer_state = None if state is None else state.layers[i]
            run = partial(checkpoint, _run, layer, use_reentrant=False) if recompute else layer
            x, layer_state = run(x, positions, code, mask, layer_state, return_state, overwrite)
            layer_states.append(layer_state)
        if self.norm is not None:
            x = self.norm(x, key_mask)
        if not return_state:
            return x, None
        if recent is not None:
            recent = recent[:, -self.longest_lag :].clone()
        length = self._start(tokens, state) + tokens.shape[1]
        return x, ModelState(layer_states, position_state, length, recent=recent, key=key)

    def _noise(
        self, noise: Any, tokens: Tensor, positions: Tensor, state: ModelState | None
    ) -> tuple[Any, NoiseKey | None]:
        """Return the noise of a call, see `hidden`, and its key; None: the noise was given."""
        if noise is None:
            last = None if state is None else state.key
            noise = last or (NoiseKey.fresh() if self.training else NoiseKey((0,)))
        if not isinstance(noise, NoiseKey):
            return noise, None
        batch_size = tokens.shape[0]  # len(tokens) would be a constant in an exported graph
        before = None if state is None else state.position
        draw = partial(self.position.draw, batch_size=batch_size, state=before)
        return draw(noise, positions, positions.device), noise

    def hidden_states(self, tokens: Tensor, **inputs: Any) -> list[Tensor]:
        """Return the input of the first layer and the output of each layer, [B, L, D] each.

        The norm before the head, if there is one, is not applied. A class token comes first.

        Args:
            inputs: `positions`, `key_mask` and `noise`, as in `hidden`.
        """
        return hidden_states(self, tokens, **inputs)

    def attentions(
        self, tokens: Tensor, *, layers: Sequence[int] | None = None, **inputs: Any
    ) -> Tensor:
        """Return the attention matrices of layers (None: all), [layers, B, H, L, L].

        These are not always distributions, see `attention_matrices`, which has the arguments.
        """
        layers = range(len(self.layers)) if layers is None else layers
        return attention_matrices(self, tokens, layers=layers, **inputs)

    def _embedded(self, tokens: Tensor, positions: Tensor, recent: Tensor | None) -> Tensor:
        """Return the sum of all inputs per token, scaled: [B, L, D]."""
        inputs: Any = self.inputs
        embedding, *others = inputs.values()
        x = embedding(tokens)
        for module in others:
            x = x + module(module.read(positions, recent))
        return x * self.embedding_scale

    def _start(self, tokens: Tensor, state: ModelState | None) -> Tensor:
        """Return the number of tokens before these: [B]."""
        return tokens.new_zeros(len(tokens)) if state is None else state.length

    def _positions(
        self, tokens: Tensor, positions: Tensor | None, state: ModelState | None
    ) -> Tensor:
        """Return `positions`, or what they are by default (see `hidden`): [1|B, L, P]."""
        start = None if state is None else state.length
        number, names = self.num_position_columns, self.coordinate_names
        return find_positions(tokens, positions, start, number, names, self.coordinates)


def _run(layer: Layer, x: Tensor, positions: Tensor, code: LayerCode, *arguments: Any) -> Any:
    """Return the output of a layer without cached results, so that each call does the same."""
    return layer(x, positions, code.repeatable(), *arguments)
