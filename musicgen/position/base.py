"""What a positional encoding is to a model: positions in, one code per layer out."""

from __future__ import annotations

import hashlib
from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from musicgen.errors import UserError

_COLUMNS: dict[str, slice[int, int, None]] = {
    "index": slice(0, 1),
    "time": slice(1, 2),
    "both": slice(0, 2),
}


class Site(StrEnum):
    """Where in a layer a positional encoding acts."""

    EMBEDDING = "embedding"
    """On the token embedding, once, before the first layer."""
    QUERY_KEY = "query_key"
    """On queries and keys, before any feature map."""
    FEATURE = "feature"
    """On the feature maps of queries and keys."""
    LOGIT = "logit"
    """On explicit query-key logits."""


@dataclass(frozen=True)
class NoiseKey:
    """Names a random draw: the same words give the same numbers, whatever was drawn before.

    So a draw survives resuming, activation checkpointing and chunking, and decoding a token at
    a time sees the noise that one parallel pass would.
    """

    words: tuple[int, ...]

    def fold(self, *words: int) -> NoiseKey:
        """A key of its own for a part of the computation, such as a layer."""
        return NoiseKey(self.words + words)

    @property
    def seed(self) -> int:
        """63 bits that the words decide."""
        digest = hashlib.blake2b(repr(self.words).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1

    def generator(self, device: torch.device | str = "cpu") -> torch.Generator:
        """A generator of this key's numbers on `device`."""
        return torch.Generator(device).manual_seed(self.seed)

    def normal(self, *shape: int, device: torch.device | str) -> Tensor:
        """Standard normal fp32 numbers of the given shape."""
        return torch.randn(*shape, generator=self.generator(device), device=device)


def product_dtype(device: torch.device) -> torch.dtype:
    """What matrix products are computed in on a device now: autocast's type, else fp32."""
    enabled = torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if enabled else torch.float32


class Projection(NamedTuple):
    """Encoded queries or keys, as random features see them."""

    product: Tensor  # [B, L, H, M]: q̂ ω
    squared_norm: Tensor  # [B, L, H, 1]: ‖q̂‖²


class LayerCode:
    """The position of one block of tokens, as one layer sees it. The default does nothing.

    Attributes:
        keeps_sign: encoded positive features are positive. Where not, linear attention keeps its
            normaliser positive by taking it of the features before they are encoded.
        log_decay: [H], not above 0: on features, the pair (n, m) of tokens weighs
            exp(log_decay · (n − m)) besides. Causal only; None weighs all alike.
    """

    keeps_sign: bool = True
    log_decay: Tensor | None = None

    def encode(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Encode queries and keys together, as they may share noise: [B, L, H, K] -> [.., E]."""
        return q, k

    def project(self, q: Tensor, k: Tensor, omega: Tensor) -> tuple[Projection, Projection]:
        """Encode, and multiply by omega [E, M]: together, for codes that are wide."""
        q, k = self.encode(q, k)
        with torch.autocast(q.device.type, enabled=False):
            q, k = q.float(), k.float()
            return (
                Projection(q @ omega, q.square().sum(-1, keepdim=True)),
                Projection(k @ omega, k.square().sum(-1, keepdim=True)),
            )


class PositionalEncoding(nn.Module, ABC):
    """Positions in, one code per layer out. One module serves the whole model.

    A shared encoding repeats one code, a per-layer one returns different codes: a model's blocks
    own no position parameters.

    Args:
        num_layers: layers that will ask for a code.
        num_heads: attention heads, H.
        width: width of what is encoded: the head width K at `Site.QUERY_KEY`.
        model_dim: model width D, for encodings of the embedding.
        coordinates: what of a position is read: `index`, the first coordinate; `time`, the second,
            which in music is musical time; `both`; or a number of coordinates, as of images.

    Attributes:
        name: the word for it on the command line.
        sites: where the encoding may act.
        relative: whether products of encoded queries and keys depend on t − s alone: exactly, in
            expectation, or not.
        encoded_dim: width E of an encoded query or key.
        logit_scale: what softmax attention and FAVOR+ multiply q·k by.
        max_length: positions beyond this have no encoding; None without a limit.
        columns: the coordinates that are read.

    Raises:
        UserError: there are no such coordinates.
    """

    name: ClassVar[str]
    sites: ClassVar[frozenset[Site]]
    relative: Literal["no", "exact", "expected"]
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
        self.columns: slice[int, int, None]
        if isinstance(coordinates, str) and coordinates in _COLUMNS:
            self.columns = _COLUMNS[coordinates]
        elif isinstance(coordinates, int) and coordinates >= 1:
            self.columns = slice(0, coordinates)
        else:
            raise UserError(
                f"model.position.coordinates={coordinates}: give index, time, both, or a number of "
                "coordinates"
            )
        self.num_layers, self.num_heads = num_layers, num_heads
        self.width, self.model_dim = width, model_dim
        self.encoded_dim = width
        self.logit_scale = width**-0.5

    @property
    def num_dims(self) -> int:
        """How many coordinates are read."""
        return self.columns.stop - self.columns.start

    @property
    def needs_positions(self) -> bool:
        """Whether a model must be given positions: counting tokens is not enough."""
        return self.columns.stop > 1

    def read(self, positions: Tensor) -> Tensor:
        """The coordinates that are read, of positions [1|B, L, P]: [1|B, L, num_dims].

        Raises:
            UserError: positions have fewer.
        """
        if positions.shape[-1] < self.columns.stop:
            raise UserError(
                f"position={self.name} reads coordinate {self.columns.stop} of each position, but "
                f"there are {positions.shape[-1]}. Use model.position.coordinates=index"
            )
        return positions[..., self.columns]

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Encode the embedding: [B, L, D] and positions [1|B, L, P] -> [B, L, D]."""
        return x

    def kernel(self, lags: Tensor, layer: int | None = None) -> Tensor | None:
        """What content is multiplied by at a lag m − n, of a query at m and a key at n.

        Namely each dimension of the products q_d k_d; at `Site.LOGIT`, each dimension of a query.

        Args:
            lags: [N], or [N, num_dims] where several coordinates are read.
            layer: None is the first.

        Returns:
            [H, K', N] for K' dimensions; None if it is no function of the lag.
        """
        return None

    @property
    def shares_kernel(self) -> bool:
        """Whether `kernel` is the same for all layers."""
        return False

    def log_decay(self) -> Tensor | None:
        """What a pair of tokens weighs besides (see `LayerCode`), in all layers: [H] or None."""
        return None

    def logit_bias(self, lags: Tensor, layer: int | None = None) -> Tensor | None:
        """What logits gain at a lag whatever the query, as `kernel` takes it: [H, 1, N] or None."""
        return None

    def forward(
        self, positions: Tensor, *, noise: NoiseKey, state: Any = None
    ) -> tuple[Sequence[LayerCode], Any]:
        """One code per layer for the positions [1|B, L, P].

        `state` is what an earlier call on the same sequence returned; it only saves work, as
        every draw is a function of `noise`.
        """
        return [LayerCode()] * self.num_layers, None
