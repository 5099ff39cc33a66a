"""Interface of positional encodings, which return one code per layer for given positions.

A code encodes queries and keys, or has a term that is added to attention logits.
"""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from musicgen.errors import ParameterError, UserError
from musicgen.random import NoiseKey

Coordinates: TypeAlias = str | int | Sequence[str]
"""Names of coordinates, or their number. The code that computes positions defines the names."""


MAX_LAGS = 1 << 20
"""Largest table in several dimensions, in lags; each may have a vector of the model's width."""

LagBounds = tuple[tuple[int, int], ...]  # first and last lag of each dimension


class Site(StrEnum):
    """Where in a layer a positional encoding acts."""

    EMBEDDING = "embedding"  # the token embedding, once, before the first layer
    QUERY_KEY = "query_key"  # queries and keys, before any feature map
    FEATURE = "feature"  # the feature maps of queries and keys
    LOGIT = "logit"  # explicit query-key logits


def product_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of matrix products on a device: that of autocast if it is on, else fp32."""
    enabled = torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if enabled else torch.float32


def prefers_large_operations(device: torch.device) -> bool:
    """Return whether few large operations are faster than loops over blocks that fit a cache.

    A compiled step needs them, as loops do not make one graph. An exported decoding step does not:
    it has one token, and therefore a single block.
    """
    compiles = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
    return device.type != "cpu" or compiles


def at_least_fp32(*tensors: Tensor) -> list[Tensor]:
    """Return tensors in one dtype: fp64 if one of them is, else fp32."""
    dtype = torch.float64 if any(x.dtype == torch.float64 for x in tensors) else torch.float32
    return [x.to(dtype) for x in tensors]


@dataclass(eq=False, kw_only=True)
class LayerCode:
    """How one layer encodes the positions of one block of tokens. The default encodes nothing.

    Attributes:
        keeps_sign: encoding keeps positive features positive.
        encodes_normaliser: linear attention computes its normaliser from features after encoding;
            else from features before encoding, which are positive.
        log_decay: [H], at most 0: linear attention also weights the pair (n, m) of tokens by
            exp(log_decay · (n − m)). Causal only; None: no decay.
        logits: the term added to logits, for encodings that act at `Site.LOGIT`.
    """

    keeps_sign: bool = True
    encodes_normaliser: bool = True
    log_decay: Tensor | None = None
    logits: LayerLogits | None = None

    def repeatable(self) -> LayerCode:
        """Return a copy without cached results, so that each call does the same."""
        return self if self.logits is None else replace(self, logits=replace(self.logits, cache=[]))

    def encode(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return encoded queries and keys: [B, L, H, K] -> [B, L, H, E] each.

        They are encoded together, as they may share noise.
        """
        return q, k

    def project(self, q: Tensor, k: Tensor, directions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return encoded queries and keys times `directions` [E, M], and ‖k̂‖², [B, L, H, 1].

        Codes with a large E override this to avoid encoded arrays.
        """
        encoded = self.encode(q, k)
        dtype = product_dtype(q.device)
        with torch.autocast(q.device.type, enabled=False):
            q, k = at_least_fp32(*encoded)
            squared_norm = k.square().sum(-1, keepdim=True)
            if q.dtype == torch.float32 and prefers_large_operations(q.device):
                q, k = q.to(dtype), k.to(dtype)  # products are faster in autocast's dtype
            directions = directions.to(q.dtype)
            return q @ directions, k @ directions, squared_norm


@dataclass(frozen=True)
class LogitTerm:
    """The term that one layer adds to logits. A part that is None adds nothing.

    With the lag x, key position minus query position, the logit of a query and a key is

        logit_scale · ((q + content_offset)·k + (q + position_offset)·encoding(x)) + bias(x)

    Lags are integers [N, num_dims]; `encoding` and `bias` return fp32.
    """

    content_offset: Tensor | None = None  # [H, K]
    position_offset: Tensor | None = None  # [H, K]
    encoding: Callable[[Tensor], Tensor] | None = None  # [N, num_dims] -> [H, N, K]
    bias: Callable[[Tensor], Tensor] | None = None  # [N, num_dims] -> [H, N]

    def content_query(self, q: Tensor) -> Tensor:
        """Return q + content_offset, the factor on keys without `logit_scale`: [B, L, H, K]."""
        return q if self.content_offset is None else q + self.content_offset.to(q.dtype)

    def position_query(self, q: Tensor, logit_scale: float) -> Tensor:
        """Return the factor on `values`: [B, L, H, K'].

        It is logit_scale · (q + position_offset), and a 1 for the bias.
        """
        parts = []
        if self.encoding is not None:
            offset = self.position_offset
            parts.append((q if offset is None else q + offset.to(q.dtype)) * logit_scale)
        if self.bias is not None:
            parts.append(torch.ones_like(q[..., :1]))
        return torch.cat(parts, dim=-1)

    def values(self, lags: Tensor) -> Tensor:
        """Return the encodings and the bias of lags, concatenated: [N, num_dims] -> [H, N, K']."""
        parts = [] if self.encoding is None else [self.encoding(lags)]
        if self.bias is not None:
            parts.append(self.bias(lags)[..., None])
        return torch.cat(parts, dim=-1)


class LagTable(NamedTuple):
    """The values of a term at all lags within bounds; the last dimension varies fastest."""

    values: Tensor  # [H, N, K']
    bounds: LagBounds
    columns: tuple[int, ...]  # of positions that are read

    def rows(self, lags: Tensor) -> Tensor:
        """Return the index in `values` of each lag: [B, Lq, Lk, P] -> [B, 1, Lq, Lk].

        Lags outside of the bounds are clamped to them.
        """
        row = torch.zeros_like(lags[..., 0])
        for column, (low, high) in zip(self.columns, self.bounds, strict=True):
            row = row * (high - low + 1) + (lags[..., column].clamp(low, high) - low)
        return row[:, None]


@dataclass(frozen=True)
class LayerLogits:
    """The logit term of one layer for one block of tokens."""

    term: LogitTerm
    positions: Tensor  # [1|B, L, P]
    columns: tuple[int, ...]  # of positions that are read
    cache: list[LagTable]  # the last table computed for this sequence

    def table(self, column_bounds: LagBounds) -> LagTable:
        """Return a table with all lags within the bounds: the cached one if it has them.

        Raises:
            UserError: in several dimensions, the table would have more than `MAX_LAGS` lags.
        """
        bounds = tuple(column_bounds[column] for column in self.columns)
        for table in self.cache:
            if all(
                first <= low and high <= last
                for (first, last), (low, high) in zip(table.bounds, bounds, strict=True)
            ):
                return table
        if self.cache:  # in decoding, the lags grow with every token: make room for more
            wide = tuple((-_next_power_of_two(-low), _next_power_of_two(h)) for low, h in bounds)
            bounds = wide if len(wide) == 1 or _size(wide) <= MAX_LAGS else bounds
        if len(bounds) > 1 and _size(bounds) > MAX_LAGS:
            raise UserError(
                "a positional encoding on attention logits needs a table of all lags, and these "
                f"coordinates have {_size(bounds):,}; use fewer coordinates or shorter sequences"
            )
        device = self.positions.device
        axes = [torch.arange(low, high + 1, device=device) for low, high in bounds]
        lags = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, -2)
        with torch.autocast(device.type, enabled=False):
            self.cache[:] = [LagTable(self.term.values(lags), bounds, self.columns)]
        return self.cache[0]


def _size(bounds: LagBounds) -> int:
    return math.prod(high - low + 1 for low, high in bounds)


def _next_power_of_two(number: int) -> int:
    """Round a positive number up to a power of two; return others unchanged."""
    return 1 << (number - 1).bit_length() if number > 0 else number


class PositionalEncoding(nn.Module, ABC):
    """Base class of positional encodings: returns one code per layer for given positions.

    One module serves the whole model and owns all parameters of positions. An encoding that layers
    share returns the same code for all of them.

    Args:
        num_layers, num_heads: number of layers, and of heads H.
        width: width of the vectors to encode: the head width K at `Site.QUERY_KEY`, the feature
            map's width M at `Site.FEATURE`.
        model_dim: model width D.
        coordinates: which coordinates of a position to read: a name or a list of names, such as
            `index` (of the token) or `[index, beat]`; or their number, for example 2 for images.

    Attributes:
        sites: where the encoding may act. An argument `site`, if there is one, chooses among them.
        decays: codes may have a `log_decay`, which only linear attention applies.
        relative: whether products of queries at s and keys at t depend only on t − s: exactly, in
            expectation, or not.
        shares_kernel: whether all layers have the same `kernel`.
        has_fixed_state: whether the state that `forward` returns stays the same after the first
            call.
        max_length: number of positions that can be encoded; None: no limit.
        encoded_dim: width E of an encoded query or key.
        logit_scale: factor on q·k in softmax attention and FAVOR+.
        columns, num_dims: the columns of positions to read, and their number.
        num_columns: number of columns that positions must have.
        coordinate_names: names of these columns: `index`; then `time`, if more than the index is
            read; then the others. Where only a number of coordinates is given, names end at `time`.

    Raises:
        ParameterError: `coordinates` are empty or repeat a name.
    """

    name: ClassVar[str]
    sites: ClassVar[frozenset[Site]]
    decays: ClassVar[bool] = False
    relative: Literal["no", "exact", "expected"]
    shares_kernel: bool = False
    has_fixed_state: ClassVar[bool] = True
    max_length: int | None = None

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        width: int,
        model_dim: int,
        *,
        coordinates: Coordinates = "index",
    ) -> None:
        super().__init__()
        self.columns, self.num_columns, self.coordinate_names = _find_columns(coordinates)
        self.num_dims = len(self.columns)
        self.num_layers, self.num_heads = num_layers, num_heads
        self.width, self.model_dim = width, model_dim
        self.encoded_dim = width
        self.logit_scale = width**-0.5

    def read(self, positions: Tensor) -> Tensor:
        """Return the coordinates that are read, [1|B, L, num_dims], of positions [1|B, L, P]."""
        # Not an index by a list, as copying the list to a GPU waits for it.
        return torch.stack([positions[..., column] for column in self.columns], dim=-1)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return the encoded embedding [B, L, D] of x [B, L, D] at positions [1|B, L, P]."""
        return x

    def kernel(self, lags: Tensor, layer: int = 0) -> Tensor | None:
        """Return the positional kernel P_d at lags, the factor by which it weighs content.

        For a query at m and a key at n, the lag is m − n. The kernel multiplies the products
        q_d k_d of each dimension d, or q_d at `Site.LOGIT`.

        Args:
            lags: [N], or [N, num_dims] for several coordinates.
            layer: number of the layer.

        Returns:
            [H, K', N] for K' dimensions; None if the encoding is not a function of the lag.
        """
        return None

    def log_decay(self) -> Tensor | None:
        """Return the logarithm of the decay of pairs (see `LayerCode`), [H], for all layers."""
        return None

    def logit_bias(self, lags: Tensor, layer: int = 0) -> Tensor | None:
        """Return the part of logits that depends only on the lag m − n: [H, 1, N], or None."""
        return None

    def draw(
        self,
        key: NoiseKey,
        positions: Tensor,
        device: torch.device,
        *,
        batch_size: int = 1,
        state: Any = None,
    ) -> Any:
        """Return the noise of a forward pass, which is a function of the key; (): no noise.

        It is drawn before a compiled region and enters the region as tensors. Decisions that depend
        on the values of positions are made here, too.

        Args:
            key: noise key.
            positions: as in `forward`. Their values may be read, which waits for a GPU if they
                are on one.
            device: where the noise is needed.
            batch_size: number of sequences B.
            state: as in `forward`.
        """
        return ()

    def forward(
        self, positions: Tensor, *, noise: Any, state: Any = None
    ) -> tuple[Sequence[LayerCode], Any]:
        """Return one code per layer, and the state.

        Args:
            positions: [1|B, L, P].
            noise: a `NoiseKey`, or what `draw` returned for it.
            state: what an earlier call returned for the tokens before these. It only saves work.
        """
        return [LayerCode()] * self.num_layers, None


def _find_columns(coordinates: Coordinates) -> tuple[tuple[int, ...], int, tuple[str, ...]]:
    """Return the columns of positions to read, the number of all columns, and their names."""
    if isinstance(coordinates, int) and coordinates >= 1:
        return tuple(range(coordinates)), coordinates, ("index", "time")[:coordinates]
    names: list[str] = []
    if isinstance(coordinates, Sequence):
        names = [coordinates] if isinstance(coordinates, str) else list(coordinates)
    if not names or len({*names}) < len(names):
        expected = "expected a name, a list of different ones such as [index,beat], or their number"
        raise ParameterError("coordinates", coordinates, expected)
    layout = ["index"]
    if names != layout:
        layout = ["index", "time", *(name for name in names if name not in ("index", "time"))]
    return tuple(map(layout.index, names)), len(layout), tuple(layout)
