"""Absolute encodings, which are added to the token embedding, and the option of no encoding."""

from typing import Any

import torch
from torch import Tensor, nn

from musicgen.errors import ParameterError
from musicgen.position.angles import angles_at, geometric_frequencies
from musicgen.position.base import PositionalEncoding, Site
from musicgen.random import NoiseKey


class NoPosition(PositionalEncoding):
    """No positional encoding: a causal model infers the order from which tokens each one sees."""

    name = "none"
    sites = frozenset({Site.EMBEDDING, Site.QUERY_KEY})
    relative = "exact"


class Sinusoidal(PositionalEncoding):
    """Fixed sines and cosines of geometrically spaced frequencies (Vaswani et al. 2017, §3.5)."""

    name = "sinusoidal"
    sites = frozenset({Site.EMBEDDING})
    relative = "no"
    shares_kernel = True

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Add sin(n·ω_i) to the even and cos(n·ω_i) to the odd channels, ω_i = 10000^(−2i/D)."""
        return x + sinusoids(positions[..., :1], self.model_dim).to(x.dtype)

    def kernel(self, lags: Tensor, layer: int = 0) -> Tensor:
        """Return cos((m − n) ω_i), the product of two encodings by frequency.

        sin(mω) sin(nω) + cos(mω) cos(nω) = cos((m − n) ω), before any projection. Lags m − n [N]
        give [1, D/2, N], the same for all heads.
        """
        return sinusoids(lags[:, None], self.model_dim)[:, 1::2].T[None]


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Return alternating sines and cosines in fp32, [..., width], of positions [..., 1]."""
    even = torch.arange(0, width, 2, device=positions.device)
    angles = angles_at([(positions, geometric_frequencies(even, width))])  # [..., width / 2]
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[..., :width]


class Learnable(PositionalEncoding):
    """One learned vector per position below `max_length` (Gehring et al. 2017).

    A class token, at position −1, has the last vector.

    Args:
        max_length: number of positions, each with a vector.
    """

    name = "learnable"
    sites = frozenset({Site.EMBEDDING})
    relative = "no"

    def __init__(self, *args: int, max_length: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.max_length = max_length
        self.table = nn.Parameter(0.02 * torch.randn(max_length, self.model_dim))

    def draw(
        self, key: NoiseKey, positions: Tensor, device: torch.device, **others: Any
    ) -> tuple[()]:
        """Return (), as there is no noise; check that each position has a vector.

        Raises:
            ParameterError: a position is `max_length` or more.
        """
        if torch.compiler.is_exporting():
            return ()
        first, last = (int(end) for end in positions[..., 0].aminmax())
        last -= min(first, 0)
        if last >= len(self.table):
            expected = (
                f"expected {last + 1} or more, one vector per position; train with a larger "
                "max_length, or with an encoding without a limit, such as sine_spe, sinusoidal or "
                "none"
            )
            raise ParameterError("max_length", self.max_length, expected)
        return ()

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.table[positions[..., 0].long()].to(x.dtype)
