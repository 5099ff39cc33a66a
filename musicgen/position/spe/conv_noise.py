"""White noise by blocks of positions, and filters over it as matrix products.

A block's noise is a function of its key only, so any part of a sequence or an image can be computed
by itself. The codes of a row of adjacent positions are a Toeplitz matrix of the filter's taps times
the patch of noise that the filters cover at that row.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from musicgen.random import NoiseKey

# Positions along each side of a block, in one, two and three dimensions.
BLOCK_SIDES = (128, 16, 8)


@dataclass(frozen=True)
class ConvNoise(ABC):
    """The noise z of one code over blocks of positions, times `scale`."""

    key: NoiseKey
    blocks: Sequence[Any]
    num_dims: int
    width: int  # K
    num_realizations: int  # R
    scale: float
    filter_length: int  # taps in each dimension
    device: torch.device

    @property
    def side(self) -> int:
        """Positions along a side of a block."""
        return BLOCK_SIDES[self.num_dims - 1]

    @property
    def row_length(self) -> int:
        return self.side

    @property
    def patch_side(self) -> int:
        """Positions along a side of what filters cover over a block."""
        return self.side + self.filter_length - 1

    @property
    def num_positions(self) -> int:
        return len(self.blocks) * self.side**self.num_dims

    @abstractmethod
    def draw(self, head: int) -> Any:
        """Draw a head's noise for the methods below."""

    @abstractmethod
    def patches(self, z: Any) -> Iterator[tuple[slice, Tensor]]:
        """Yield each row of positions with the noise that filters cover there: [K, patch, R]."""

    def toeplitz(self, taps: Tensor) -> Tensor:
        """Return the matrices whose row i holds the taps from position i on: [K, row, patch]."""
        padded = F.pad(taps, (self.row_length - 1, self.patch_side - self.filter_length))
        return padded.unfold(-1, self.patch_side, 1).flip(-2).movedim(-2, 1).flatten(2)

    def transposed_toeplitz(self, matrix: Tensor) -> Tensor:
        """Apply the transpose of `toeplitz`, which sums diagonals: [K, row, patch] -> [K, *F]."""
        others = (self.filter_length,) * (self.num_dims - 1)
        matrix = matrix.unflatten(-1, (*others, self.patch_side)).movedim(1, -2)
        # Entry (i, i + p) of rows of width w lies at i·(w + 1) + p: in rows of w + 1, at column p.
        skewed = F.pad(matrix.flatten(-2), (0, self.row_length))
        skewed = skewed.unflatten(-1, (self.row_length, self.patch_side + 1))
        return skewed.sum(-2)[..., : self.filter_length]

    def correlate(self, z: Any, taps: Tensor, out: Tensor) -> None:
        """Write Σ_p taps[p] z[position + p] to out [num_positions, K, R]."""
        matrix = self.toeplitz(taps)
        for row, patch in self.patches(z):
            out[row] = (matrix @ patch).transpose(0, 1)

    def correlate_first(self, z: Any, taps: Tensor) -> Tensor:
        """Return Σ_p taps[p] z[position + p] at the first position: [K, R]. Differentiable."""
        _, patch = next(self.patches(z))
        return (self.toeplitz(taps)[:, :1] @ patch)[:, 0]

    def taps_gradient(self, z: Any, grad_at: Callable[[slice], Tensor]) -> Tensor:
        """Return the gradient of the taps, [K, *F], from that of `correlate`'s output, by rows."""
        matrix: Tensor | None = None
        for row, patch in self.patches(z):
            g, transposed = grad_at(row).transpose(0, 1), patch.transpose(1, 2)
            matrix = g @ transposed if matrix is None else matrix.baddbmm_(g, transposed)
        assert matrix is not None
        return self.transposed_toeplitz(matrix)


class SequenceNoise(ConvNoise):
    """Noise in one dimension, over a range of adjacent blocks."""

    blocks: range

    @property
    def row_length(self) -> int:
        # Fewer entries of the Toeplitz matrices of short rows are zeros, but a GPU waits for each.
        return 32 if self.device.type == "cpu" else self.side

    @property
    def patch_side(self) -> int:
        """A row, and as many whole rows after it as filters reach into."""
        return self.row_length * (1 - (1 - self.filter_length) // self.row_length)

    def draw(self, head: int) -> Tensor:
        """Draw the noise of the blocks and of those after them that filters reach into."""
        key, shape = self.key.fold(head), (self.width, self.side, self.num_realizations)
        stop = self.blocks.stop - (1 - self.filter_length) // self.side
        drawn = range(self.blocks.start, stop)
        z = torch.empty(shape[0], len(drawn), *shape[1:], device=self.device)
        for i, block in enumerate(drawn):
            torch.mul(key.fold(block).normal(*shape, device=self.device), self.scale, out=z[:, i])
        return z.flatten(1, 2)  # [K, positions, R]

    def patches(self, z: Tensor) -> Iterator[tuple[slice, Tensor]]:
        for start in range(0, self.num_positions, self.row_length):
            yield slice(start, start + self.row_length), z[:, start : start + self.patch_side]


class GridNoise(ConvNoise):
    """Noise in n dimensions, over a list of blocks, whose rows run along the last dimension."""

    blocks: Sequence[tuple[int, ...]]

    def draw(self, head: int) -> list[Tensor]:
        """Draw the noise that filters cover over each block: [K, *positions, R] each."""
        key, side, dims = self.key.fold(head), self.side, self.num_dims
        sizes = ((self.width, *(n,) * dims, self.num_realizations) for n in (side, self.patch_side))
        shape, patch_shape = sizes
        drawn: dict[tuple[int, ...], Tensor] = {}
        out = []
        for block in self.blocks:
            z = torch.empty(patch_shape, device=self.device)
            for offset in product(range(-(-self.patch_side // side)), repeat=dims):
                source = tuple(b + o for b, o in zip(block, offset, strict=True))
                if source not in drawn:
                    noise = key.fold(*source).normal(*shape, device=self.device)
                    drawn[source] = noise * self.scale
                part = z[(slice(None), *(slice(o * side, (o + 1) * side) for o in offset))]
                part.copy_(drawn[source][tuple(slice(size) for size in part.shape)])
            out.append(z)
        return out

    def patches(self, z: list[Tensor]) -> Iterator[tuple[slice, Tensor]]:
        start = 0
        for block in z:
            for first in product(range(self.side), repeat=self.num_dims - 1):
                rows = tuple(slice(i, i + self.filter_length) for i in first)
                yield slice(start, start + self.side), block[(slice(None), *rows)].flatten(1, -2)
                start += self.side
