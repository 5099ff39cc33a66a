"""White noise by blocks of positions, and filters over it as matrix products.

A block's noise is a function of its key only, so any part of a sequence can be computed by itself.
The codes of a row of adjacent positions are a Toeplitz matrix of the filter's taps times the patch
of noise that the filters cover at that row.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from musicgen.random import NoiseKey

BLOCK_SIDE = 128  # positions in a block


@dataclass(frozen=True)
class ConvNoise:
    """The noise z of one code over a range of adjacent blocks of positions, times `scale`."""

    key: NoiseKey
    blocks: range
    width: int  # K
    num_realizations: int  # R
    scale: float
    filter_length: int  # taps
    device: torch.device

    @property
    def row_length(self) -> int:
        # Fewer entries of the Toeplitz matrices of short rows are zeros, but a GPU waits for each.
        return 32 if self.device.type == "cpu" else BLOCK_SIDE

    @property
    def patch_length(self) -> int:
        """A row, and as many whole rows after it as filters reach into."""
        return self.row_length * (1 - (1 - self.filter_length) // self.row_length)

    @property
    def num_positions(self) -> int:
        return len(self.blocks) * BLOCK_SIDE

    def draw(self, head: int) -> Tensor:
        """Draw a head's noise of the blocks and of those after them that filters reach into."""
        key, shape = self.key.fold(head), (self.width, BLOCK_SIDE, self.num_realizations)
        stop = self.blocks.stop - (1 - self.filter_length) // BLOCK_SIDE
        drawn = range(self.blocks.start, stop)
        z = torch.empty(shape[0], len(drawn), *shape[1:], device=self.device, dtype=torch.float32)
        for i, block in enumerate(drawn):
            torch.mul(key.fold(block).normal(*shape, device=self.device), self.scale, out=z[:, i])
        return z.flatten(1, 2)  # [K, positions, R]

    def patches(self, z: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield each row of positions with the noise that filters cover there: [K, patch, R]."""
        for start in range(0, self.num_positions, self.row_length):
            yield slice(start, start + self.row_length), z[:, start : start + self.patch_length]

    def toeplitz(self, taps: Tensor) -> Tensor:
        """Return the matrices whose row i holds the taps from position i on: [K, row, patch]."""
        padded = F.pad(taps, (self.row_length - 1, self.patch_length - self.filter_length))
        return padded.unfold(-1, self.patch_length, 1).flip(-2)

    def transposed_toeplitz(self, matrix: Tensor) -> Tensor:
        """Apply the transpose of `toeplitz`, which sums diagonals: [K, row, patch] -> [K, F]."""
        # Entry (i, i + p) of rows of width w lies at i·(w + 1) + p: in rows of w + 1, at column p.
        skewed = F.pad(matrix.flatten(-2), (0, self.row_length))
        skewed = skewed.unflatten(-1, (self.row_length, self.patch_length + 1))
        return skewed.sum(-2)[..., : self.filter_length]

    def correlate(self, z: Tensor, taps: Tensor, out: Tensor) -> None:
        """Write Σ_p taps[p] z[position + p] to out [num_positions, K, R]."""
        matrix = self.toeplitz(taps)
        for row, patch in self.patches(z):
            out[row] = (matrix @ patch).transpose(0, 1)

    def correlate_first(self, z: Tensor, taps: Tensor) -> Tensor:
        """Return Σ_p taps[p] z[position + p] at the first position: [K, R]. Differentiable."""
        _, patch = next(self.patches(z))
        return (self.toeplitz(taps)[:, :1] @ patch)[:, 0]

    def taps_gradient(self, z: Tensor, grad_at: Callable[[slice], Tensor]) -> Tensor:
        """Return the gradient of the taps, [K, F], from that of `correlate`'s output, by rows."""
        matrix: Tensor | None = None
        for row, patch in self.patches(z):
            g, transposed = grad_at(row).transpose(0, 1), patch.transpose(1, 2)
            matrix = g @ transposed if matrix is None else matrix.baddbmm_(g, transposed)
        assert matrix is not None
        return self.transposed_toeplitz(matrix)
