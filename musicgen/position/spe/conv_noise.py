"""White noise in blocks of positions, and filters over it as matrix products.

The noise of a block is a function of its key only, so that any part of a sequence can be computed
separately. The codes of a row of adjacent positions are a Toeplitz matrix of the filter's taps
times the patch of noise that the filters cover at these positions.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from musicgen.random import NoiseKey

BLOCK_SIDE = 128  # positions in a block
# Positions in a row. The Toeplitz matrices of short rows have fewer zeros.
ROW_LENGTH = 32


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
    """Return the noise of blocks, and of the blocks after them that filters reach into.

    Args:
        key: noise key, which is folded with the number of each block.
        blocks: numbers of the blocks.
        shape: heads H, width K and realizations R.
        filter_length: number of taps of the filters.

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

    Operations are computed by rows of positions, whose arrays fit a CPU's cache.
    """

    z: Tensor  # [K, positions, R], of the blocks and of the blocks that filters reach into
    filter_length: int  # F, number of taps

    @property
    def patch_length(self) -> int:
        """Positions of a row and of the whole rows after it that filters reach into."""
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
        """Return the sums of diagonals, the transpose of `toeplitz`: [K, row, patch] -> [K, F]."""
        # In rows of width w, the flat index of entry (i, i + p) is i·(w + 1) + p. In rows of width
        # w + 1, that is entry (i, p).
        skewed = F.pad(matrix.flatten(-2), (0, ROW_LENGTH))
        skewed = skewed.unflatten(-1, (ROW_LENGTH, self.patch_length + 1))
        return skewed.sum(-2)[..., : self.filter_length]

    def correlate(self, taps: Tensor, out: Tensor) -> None:
        """Write Σ_p taps[p] z[position + p] to out [num_positions, K, R]."""
        matrix = toeplitz(taps, ROW_LENGTH, self.patch_length)
        for row, patch in self.patches():
            out[row] = (matrix @ patch).transpose(0, 1)

    def taps_gradient(self, grad_at: Callable[[slice], Tensor]) -> Tensor:
        """Return the gradient of the taps, [K, F].

        Args:
            grad_at: returns the gradient of the output of `correlate` at a row, [row, K, R].
        """
        matrix: Tensor | None = None
        for row, patch in self.patches():
            g, transposed = grad_at(row).transpose(0, 1), patch.transpose(1, 2)
            matrix = g @ transposed if matrix is None else matrix.baddbmm_(g, transposed)
        assert matrix is not None
        return self.transposed_toeplitz(matrix)


def toeplitz(taps: Tensor, row_length: int, patch_length: int) -> Tensor:
    """Return matrices whose row i has the taps from column i on: [..., F] -> [..., row, patch]."""
    padded = F.pad(taps, (row_length - 1, patch_length - taps.shape[-1]))
    return padded.unfold(-1, patch_length, 1).flip(-2)


def correlate_at_once(z: Tensor, taps: Tensor, dtype: torch.dtype) -> Tensor:
    """Return Σ_p taps[p] z[position + p] of all positions and heads, by few large operations.

    Args:
        z: what `draw_blocks` returned, [H, K, positions, R].
        taps: [H, K, F].
        dtype: of the products.

    Returns:
        [N, H, K, R], for the N positions of `z` without the blocks that filters reach into.
    """
    heads, _, _, realizations = z.shape
    reached = num_reached(taps.shape[-1])
    matrix = toeplitz(taps, BLOCK_SIDE, (1 + reached) * BLOCK_SIDE).flatten(0, 1).to(dtype)
    # Blocks of positions as columns: [H·K, block, blocks, R].
    side_by_side = z.unflatten(2, (-1, BLOCK_SIDE)).transpose(2, 3).flatten(0, 1).to(dtype)
    num_blocks = side_by_side.shape[2] - reached
    total = None
    for i, part in enumerate(matrix.split(BLOCK_SIDE, dim=-1)):  # of each block reached into
        product = torch.bmm(part, side_by_side[:, :, i : i + num_blocks].flatten(2))
        total = product if total is None else total + product
    assert total is not None
    codes = total.unflatten(2, (num_blocks, realizations)).unflatten(0, (heads, -1))
    return codes.permute(3, 2, 0, 1, 4).flatten(0, 1)  # [blocks, block, H, K, R]
