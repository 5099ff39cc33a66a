"""Interface of positional encodings: positions in, one code per layer out."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from musicgen.errors import ParameterError
from musicgen.position.logit.term import LayerLogits
from musicgen.random import NoiseKey

Coordinates: TypeAlias = str | int | Sequence[str]
"""Names of coordinates, or their number. What a name stands for is up to who computes positions."""


class Site(StrEnum):
    """Where in a layer a positional encoding acts."""

    EMBEDDING = "embedding"  # the token embedding, once, before the first layer
    QUERY_KEY = "query_key"  # queries and keys, before any feature map
    FEATURE = "feature"  # the feature maps of queries and keys
    LOGIT = "logit"  # explicit query-key logits


def product_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of matrix products on a device: autocast's if it is on, else fp32."""
    enabled = torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if enabled else torch.float32


def prefers_large_operations(device: torch.device) -> bool:
    """Return whether few large operations are faster than loops over blocks that fit a cache.

    Compiled, only they make one graph. An exported decoding step has one token, a single block.
    """
    compiles = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
    return device.type != "cpu" or compiles


def at_least_fp32(*tensors: Tensor) -> list[Tensor]:
    """Return tensors in one dtype: fp64 if one of them is, else fp32."""
    dtype = torch.float64 if any(x.dtype == torch.float64 for x in tensors) else torch.float32
    return [x.to(dtype) for x in tensors]


class Projection(NamedTuple):
    """Encoded queries or keys, as random features see them."""

    product: Tensor  # [B, L, H, M]: q̂ ω
    squared_norm: Tensor | None = None  # [B, L, H, 1]: ‖k̂‖², of keys


@dataclass(eq=False, kw_only=True)
class LayerCode:
    """The position of one block of tokens, as one layer sees it. The default does nothing.

    Attributes:
        keeps_sign: encoding keeps positive features positive.
        encodes_normaliser: linear attention computes its normaliser from encoded features, else
            from those before encoding, which are positive.
        log_decay: [H], at most 0: linear attention also weights the pair (n, m) of tokens by
            exp(log_decay · (n − m)). Causal only; None: no decay.
        logits: the term of the logits, for encodings that act at `Site.LOGIT`.
    """

    keeps_sign: bool = True
    encodes_normaliser: bool = True
    log_decay: Tensor | None = None
    logits: LayerLogits | None = None

    def repeatable(self) -> LayerCode:
        """Return the code without what it kept of earlier calls: each call then does the same."""
        return self if self.logits is None else replace(self, logits=replace(self.logits, cache=[]))

    def encode(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Encode queries and keys together, as they may share noise: [B, L, H, K] -> [.., E]."""
        return q, k

    def project(self, q: Tensor, k: Tensor, directions: Tensor) -> tuple[Projection, Projection]:
        """Encode, and multiply by directions [E, M]; codes of a large E form no encoded arrays."""
        encoded = self.encode(q, k)
        dtype = product_dtype(q.device)
        with torch.autocast(q.device.type, enabled=False):
            q, k = at_least_fp32(*encoded)
            squared_norm = k.square().sum(-1, keepdim=True)
            if q.dtype == torch.float32 and prefers_large_operations(q.device):
                q, k = q.to(dtype), k.to(dtype)  # autocast's, whose products are faster
            directions = directions.to(q.dtype)
            return Projection(q @ directions), Projection(k @ directions, squared_norm)


class PositionalEncoding(nn.Module, ABC):
    """Compute one code per layer from positions. One module serves the whole model.

    A shared encoding repeats one code. Layers own no position parameters.

    Args:
        width: width of the encoded vectors: the head width K at `Site.QUERY_KEY`.
        coordinates: the coordinates to read of a position: a name or a list of names, such as
            `index` (of the token) or `[index, beat]`; or their number, for example 2 for images.

    Attributes:
        sites: where the encoding may act. If it takes a `site`, that chooses one of them.
        decays: its codes may have a `log_decay`, which only linear attention applies.
        relative: whether products of encoded queries and keys depend on t − s alone: exactly, in
            expectation, or not.
        shares_kernel: whether all layers have the same `kernel`.
        has_fixed_state: whether what `forward` keeps for later tokens is decided by the first call.
        max_length: positions from here on have no encoding; None: no limit.
        encoded_dim: width E of an encoded query or key.
        logit_scale: factor on q·k in softmax attention and FAVOR+.
        columns, num_dims: the columns of positions to read, and their number.
        num_columns: number of columns that positions must have.
        coordinate_names: their names: `index`; then `time`, if more is read; then the others.
            Empty beyond `time` if only their number is known.

    Raises:
        ValueError: `coordinates` are none or repeat one.
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
        """Return the coordinates to read of positions [1|B, L, P]: [1|B, L, num_dims]."""
        # Not indexed by a list, whose copy to a GPU waits.
        return torch.stack([positions[..., column] for column in self.columns], dim=-1)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Encode the embedding: [B, L, D] and positions [1|B, L, P] -> [B, L, D]."""
        return x

    def kernel(self, lags: Tensor, layer: int | None = None) -> Tensor | None:
        """Return the factor on content at the lags m − n of a query at m and a key at n.

        It multiplies each dimension of the products q_d k_d, or of a query at `Site.LOGIT`:
        lags [N], or [N, num_dims] for several -> [H, K', N] for K' dimensions. It is None if
        it is not a function of the lag. `layer=None` is the first layer.
        """
        return None

    def log_decay(self) -> Tensor | None:
        """Return the logarithm of the decay of pairs (see `LayerCode`) in all layers: [H]."""
        return None

    def logit_bias(self, lags: Tensor, layer: int | None = None) -> Tensor | None:
        """Return the part of logits that depends on the lag m − n alone: [H, 1, N]."""
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
        """Draw the random numbers of a forward pass, a function of the key; (): there are none.

        Drawn before a compiled region, they enter it as tensors. What depends on the values of
        positions is decided here, too.

        Args:
            positions: those of `forward`. Their values may be read, for which a GPU waits unless
                they are on the CPU.
            device: of the numbers.
            batch_size: B, number of sequences.
            state: that of `forward`.
        """
        return ()

    def forward(
        self, positions: Tensor, *, noise: Any, state: Any = None
    ) -> tuple[Sequence[LayerCode], Any]:
        """Return one code per layer for the positions [1|B, L, P], and the state.

        Args:
            noise: a `NoiseKey`, or what `draw` returned for it.
            state: the one returned for earlier tokens of the sequence. It only saves work.
        """
        return [LayerCode()] * self.num_layers, None


def _find_columns(coordinates: Coordinates) -> tuple[tuple[int, ...], int, tuple[str, ...]]:
    """Return the columns of positions to read, how many there must be, and their names."""
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
