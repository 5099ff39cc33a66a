"""Interface of positional encodings: positions in, one code per layer out."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from musicgen.errors import ParameterError, UserError
from musicgen.position.logit.term import Columns, LayerLogits
from musicgen.random import NoiseKey

_COLUMNS: dict[str, Columns] = {"index": slice(0, 1), "time": slice(1, 2), "both": slice(0, 2)}


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


def at_least_fp32(*tensors: Tensor) -> list[Tensor]:
    """Return tensors in one dtype: fp64 if one of them is, else fp32."""
    dtype = torch.float64 if any(x.dtype == torch.float64 for x in tensors) else torch.float32
    return [x.to(dtype) for x in tensors]


class Projection(NamedTuple):
    """Encoded queries or keys, as random features see them."""

    product: Tensor  # [B, L, H, M]: q̂ ω
    squared_norm: Tensor  # [B, L, H, 1]: ‖q̂‖²


@dataclass(eq=False, kw_only=True)
class LayerCode:
    """The position of one block of tokens, as one layer sees it. The default does nothing.

    Attributes:
        keeps_sign: encoding keeps positive features positive.
        encodes_normaliser: linear attention computes its normaliser from encoded features, else
            from those before encoding, which are positive. None: from encoded ones if they are
            positive.
        log_decay: [H], at most 0: linear attention also weights the pair (n, m) of tokens by
            exp(log_decay · (n − m)). Causal only; None: no decay.
        logits: the term of the logits, for encodings that act at `Site.LOGIT`.
    """

    keeps_sign: bool = True
    encodes_normaliser: bool | None = None
    log_decay: Tensor | None = None
    logits: LayerLogits | None = None

    def encode(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Encode queries and keys together, as they may share noise: [B, L, H, K] -> [.., E]."""
        return q, k

    def project(self, q: Tensor, k: Tensor, directions: Tensor) -> tuple[Projection, Projection]:
        """Encode, and multiply by directions [E, M]; codes of a large E form no encoded arrays."""
        encoded = self.encode(q, k)
        with torch.autocast(q.device.type, enabled=False):
            q, k = at_least_fp32(*encoded)
            q_norm, k_norm = (x.square().sum(-1, keepdim=True) for x in (q, k))
            directions = directions.to(q.dtype)
            return Projection(q @ directions, q_norm), Projection(k @ directions, k_norm)


class PositionalEncoding(nn.Module, ABC):
    """Compute one code per layer from positions. One module serves the whole model.

    A shared encoding repeats one code. Layers own no position parameters.

    Args:
        width: width of the encoded vectors: the head width K at `Site.QUERY_KEY`.
        coordinates: the coordinates to read of a position: `index`, the first; `time`, the second,
            which in music is musical time; `both`; or their number, for example 2 for images.

    Attributes:
        sites: where the encoding may act. If it takes a `site`, that chooses one of them.
        decays: its codes may have a `log_decay`, which only linear attention applies.
        relative: whether products of encoded queries and keys depend on t − s alone: exactly, in
            expectation, or not.
        shares_kernel: whether all layers have the same `kernel`.
        max_length: positions from here on have no encoding; None: no limit.
        encoded_dim: width E of an encoded query or key.
        logit_scale: factor on q·k in softmax attention and FAVOR+.
        columns, num_dims: the coordinates to read, and their number.
        num_columns: number of coordinates that positions must have, the first ones included.
    """

    name: ClassVar[str]
    sites: ClassVar[frozenset[Site]]
    decays: ClassVar[bool] = False
    relative: Literal["no", "exact", "expected"]
    shares_kernel: bool = False
    max_length: int | None = None

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        width: int,
        model_dim: int,
        *,
        coordinates: str | int = "index",
    ) -> None:
        super().__init__()
        if isinstance(coordinates, str) and coordinates in _COLUMNS:
            self.columns = _COLUMNS[coordinates]
        elif isinstance(coordinates, int) and coordinates >= 1:
            self.columns = slice(0, coordinates)
        else:
            expected = "expected index, time, both or a number of coordinates"
            raise ParameterError("coordinates", coordinates, expected)
        self.num_columns = self.columns.stop
        self.num_dims = self.num_columns - self.columns.start
        self.num_layers, self.num_heads = num_layers, num_heads
        self.width, self.model_dim = width, model_dim
        self.encoded_dim = width
        self.logit_scale = width**-0.5

    def read(self, positions: Tensor) -> Tensor:
        """Return the coordinates to read of positions [1|B, L, P]: [1|B, L, num_dims]."""
        if positions.shape[-1] < self.num_columns:
            raise UserError(
                f"{self.name} reads coordinate {self.num_columns} of each position, but positions "
                f"have {positions.shape[-1]}. Give positions with more, or use coordinates=index"
            )
        return positions[..., self.columns]

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Encode the embedding: [B, L, D] and positions [1|B, L, P] -> [B, L, D]."""
        return x

    def kernel(self, lags: Tensor, layer: int | None = None) -> Tensor | None:
        """Return the factor on content at the lags m − n of a query at m and a key at n.

        It multiplies each dimension of the products q_d k_d, or of a query at `Site.LOGIT`:
        lags [N], or [N, num_dims] for several coordinates -> [H, K', N] for K' dimensions. It is
        None if it is not a function of the lag. `layer=None` is the first layer.
        """
        return None

    def log_decay(self) -> Tensor | None:
        """Return the logarithm of the decay of pairs (see `LayerCode`) in all layers: [H]."""
        return None

    def logit_bias(self, lags: Tensor, layer: int | None = None) -> Tensor | None:
        """Return the part of logits that depends on the lag m − n alone: [H, 1, N]."""
        return None

    def forward(
        self, positions: Tensor, *, noise: NoiseKey, state: Any = None
    ) -> tuple[Sequence[LayerCode], Any]:
        """Return one code per layer for the positions [1|B, L, P], and the state.

        `state` is the one returned for earlier tokens of the sequence. It only saves work.
        """
        return [LayerCode()] * self.num_layers, None
