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
ROW_LENGTH = (
    32  # positions in a row: fewer entries of the Toeplitz matrices of short rows are zeros
)


def num_reached(filter_length: int) -> int:
    """Return the number of blocks after a block that filters reach into."""
    return -((1 - filter_length) // BLOCK_SIDE)


def draw_blocks(
    key: NoiseKey,
    blocks: range,
    shape: tuple[int, int, int],
    filter_length: int,
    device: torch.device,
) -> Tensor:
    """Draw the noise of blocks and of those after them that filters reach into.

    Args:
        shape: heads H, width K and realizations R.

    Returns:
        [H, K, positions, R].
    """
    heads, width, realizations = shape
    drawn = range(blocks.start, blocks.stop + num_reached(filter_length))
    size = (heads, width, BLOCK_SIDE, realizations)
    return torch.cat([key.fold(block).normal(*size, device=device) for block in drawn], dim=2)


@dataclass(frozen=True)
class ConvNoise:
    """The noise of one code and head over adjacent blocks of positions, and filters over it.

    The operations are by rows of positions, whose arrays fit a CPU's cache.
    """

    z: Tensor  # [K, positions, R], of the blocks and of those after them that filters reach into
    filter_length: int  # taps

    @property
    def patch_length(self) -> int:
        """A row, and as many whole rows after it as filters reach into."""
        return ROW_LENGTH * (1 - (1 - self.filter_length) // ROW_LENGTH)

    @property
    def num_positions(self) -> int:
        return self.z.shape[1] - num_reached(self.filter_length) * BLOCK_SIDE

    def patches(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield each row of positions with the noise that filters cover there: [K, patch, R]."""
        for start in range(0, self.num_positions, ROW_LENGTH):
            patch = self.z[:, start : start + self.patch_length]
            yield slice(start, start + ROW_LENGTH), patch

    def transposed_toeplitz(self, matrix: Tensor) -> Tensor:
        """Apply the transpose of `toeplitz`, which sums diagonals: [K, row, patch] -> [K, F]."""
        # Entry (i, i + p) of rows of width w lies at i·(w + 1) + p: in rows of w + 1, at column p.
        skewed = F.pad(matrix.flatten(-2), (0, ROW_LENGTH))
        skewed = skewed.unflatten(-1, (ROW_LENGTH, self.patch_length + 1))
        return skewed.sum(-2)[..., : self.filter_length]

    def correlate(self, taps: Tensor, out: Tensor) -> None:
        """Write Σ_p taps[p] z[position + p] to out [num_positions, K, R]."""
        matrix = toeplitz(taps, ROW_LENGTH, self.patch_length)
        for row, patch in self.patches():
            out[row] = (matrix @ patch).transpose(0, 1)

    def taps_gradient(self, grad_at: Callable[[slice], Tensor]) -> Tensor:
        """Return the gradient of the taps, [K, F], from that of `correlate`'s output, by rows."""
        matrix: Tensor | None = None
        for row, patch in self.patches():
            g, transposed = grad_at(row).transpose(0, 1), patch.transpose(1, 2)
            matrix = g @ transposed if matrix is None else matrix.baddbmm_(g, transposed)
        assert matrix is not None
        return self.transposed_toeplitz(matrix)


def toeplitz(taps: Tensor, row_length: int, patch_length: int) -> Tensor:
    """Return the matrices whose row i holds the taps from position i on: [.., row, patch]."""
    padded = F.pad(taps, (row_length - 1, patch_length - taps.shape[-1]))
    return padded.unfold(-1, patch_length, 1).flip(-2)


def correlate_at_once(z: Tensor, taps: Tensor, dtype: torch.dtype) -> Tensor:
    """Return Σ_p taps[p] z[position + p] of all positions and heads, by few large operations.

    Args:
        z: what `draw_blocks` returned, [H, K, positions, R].
        taps: [H, K, F].
        dtype: of the products.

    Returns:
        [N, H, K, R], where N is the number of positions but those that filters reach into.
    """
    heads, _, _, realizations = z.shape
    reached = num_reached(taps.shape[-1])
    matrix = toeplitz(taps, BLOCK_SIDE, (1 + reached) * BLOCK_SIDE).flatten(0, 1).to(dtype)
    # The blocks of positions side by side: [H·K, block, blocks, R].
    side_by_side = z.unflatten(2, (-1, BLOCK_SIDE)).transpose(2, 3).flatten(0, 1).to(dtype)
    num_blocks = side_by_side.shape[2] - reached
    total = None
    for i, part in enumerate(matrix.split(BLOCK_SIDE, dim=-1)):  # of each block reached into
        product = torch.bmm(part, side_by_side[:, :, i : i + num_blocks].flatten(2))
        total = product if total is None else total + product
    assert total is not None
    codes = total.unflatten(2, (num_blocks, realizations)).unflatten(0, (heads, -1))
    return codes.permute(3, 2, 0, 1, 4).flatten(0, 1)  # [blocks, block, H, K, R]
