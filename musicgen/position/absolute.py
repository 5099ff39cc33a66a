"""Absolute encodings, added to the token embedding."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from musicgen.errors import UserError
from musicgen.position.base import PositionalEncoding, Site


class Sinusoidal(PositionalEncoding):
    """Fixed sines and cosines of geometrically spaced frequencies (Vaswani et al. 2017, §3.5)."""

    name = "sinusoidal"
    sites = frozenset({Site.EMBEDDING})
    relative = "no"

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Add sin(n·ω_i) to the even and cos(n·ω_i) to the odd channels, ω_i = 10000^(−2i/D)."""
        return x + sinusoids(positions[..., :1], self.model_dim).to(x.dtype)

    @property
    def shares_kernel(self) -> bool:
        return True

    def kernel(self, lags: Tensor, layer: int | None = None) -> Tensor:
        """How two encodings go together, a frequency at a time, before any projection.

        sin(mω) sin(nω) + cos(mω) cos(nω) = cos((m − n) ω): [N] -> [1, D/2, N], for all heads.
        """
        return sinusoids(lags[:, None], self.model_dim)[:, 1::2].T[None]


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Sines and cosines in turn, in fp32: positions [..., 1] -> [..., width]."""
    even = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32)
    frequencies = torch.exp(even * (-math.log(10000.0) / width))
    angles = positions.float() * frequencies  # [..., width / 2]
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[..., :width]


class Learnable(PositionalEncoding):
    """One learned vector for each position below `max_length` (Gehring et al. 2017)."""

    name = "learnable"
    sites = frozenset({Site.EMBEDDING})
    relative = "no"

    def __init__(
        self, num_layers: int, num_heads: int, width: int, model_dim: int, *, max_length: int
    ) -> None:
        super().__init__(num_layers, num_heads, width, model_dim)
        self.max_length = max_length
        self.table = nn.Parameter(0.02 * torch.randn(max_length, model_dim))

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Add the position's vector.

        Raises:
            UserError: a position at or beyond `max_length`.
        """
        index = positions[..., 0].long()
        if int(index.max()) >= len(self.table):
            raise UserError(
                f"position=learnable has {len(self.table)} positions, but position "
                f"{int(index.max())} is asked for. Train with a larger model.position.max_length, "
                "or use position=sine_spe, sinusoidal or none, which have no limit"
            )
        return x + self.table[index].to(x.dtype)
