"""White noise by blocks of positions, and filters over it as products of matrices.

A block's noise is a function of its key alone, so that any part of a sequence or an image can be
computed alone. A row of neighbouring places shares a window of noise: its places' codes are a
Toeplitz matrix of the filter's taps, times the window.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from musicgen.position.base import NoiseKey

# Positions along each side of a block, in one, two and three dimensions.
BLOCK = 128
SIDES = (BLOCK, 16, 8)


@dataclass(frozen=True)
class ConvNoise(ABC):
    """The noise z of one code under filters at some places, scaled.

    Attributes:
        key: of the code.
        width, realizations: K and R.
        scale: of the noise.
        filter_length: how far filters reach from a place on, in each dimension.
        device: where z is drawn.
    """

    key: NoiseKey
    width: int
    realizations: int
    scale: float
    filter_length: int
    device: torch.device

    @property
    @abstractmethod
    def num_places(self) -> int:
        """Places in all blocks."""

    @abstractmethod
    def draw(self, head: int) -> Any:
        """A head's noise, for the methods below."""

    @abstractmethod
    def windows(self, drawn: Any) -> Iterator[tuple[slice, Tensor]]:
        """Each row of places, and the noise that filters meet there, [K, positions, R]."""

    @abstractmethod
    def corner(self, drawn: Any) -> Tensor:
        """What filters meet at the first place: [K, taps, R]."""

    @abstractmethod
    def matrix(self, taps: Tensor) -> Tensor:
        """Taps [K, *F] as the matrices that windows are multiplied by: [K, row, positions]."""

    @abstractmethod
    def taps(self, matrix: Tensor) -> Tensor:
        """The transpose of `matrix`: [K, row, positions] -> [K, *F]."""

    def correlate(self, drawn: Any, taps: Tensor, out: Tensor) -> None:
        """Σ_p taps[p] z[place + p] into out [num_places, K, R]."""
        matrix = self.matrix(taps)
        for row, window in self.windows(drawn):
            out[row] = (matrix @ window).transpose(0, 1)

    def gradient(self, drawn: Any, grad: Tensor) -> Tensor:
        """The gradient of the taps, [K, *F], from that of `correlate`'s output."""
        matrix: Tensor | None = None
        for row, window in self.windows(drawn):
            g, z = grad[row].transpose(0, 1), window.transpose(1, 2)
            matrix = g @ z if matrix is None else matrix.baddbmm_(g, z)
        assert matrix is not None
        return self.taps(matrix)


@dataclass(frozen=True)
class LineNoise(ConvNoise):
    """In one dimension: over a run of whole blocks, each of them a row."""

    run: range

    @property
    def num_places(self) -> int:
        return len(self.run) * BLOCK

    @property
    def _reach(self) -> int:
        """Blocks that filters reach into after a block."""
        return -(-(self.filter_length - 1) // BLOCK)

    def draw(self, head: int) -> Tensor:
        """[K, positions, R], over the run and as far after it as filters reach."""
        key, shape = self.key.fold(head), (self.width, BLOCK, self.realizations)
        blocks = range(self.run.start, self.run.stop + self._reach)
        draws = [key.fold(block).normal(*shape, device=self.device) for block in blocks]
        return torch.cat(draws, dim=1) * self.scale

    def windows(self, drawn: Tensor) -> Iterator[tuple[slice, Tensor]]:
        for start in range(0, self.num_places, BLOCK):
            end = start + BLOCK
            yield slice(start, end), drawn[:, start : end + self._reach * BLOCK]

    def corner(self, drawn: Tensor) -> Tensor:
        return drawn[:, : self.filter_length]

    def matrix(self, taps: Tensor) -> Tensor:
        return _toeplitz(taps, BLOCK, (1 + self._reach) * BLOCK)

    def taps(self, matrix: Tensor) -> Tensor:
        return _diagonal_sums(matrix, self.filter_length)


@dataclass(frozen=True)
class TileNoise(ConvNoise):
    """In n dimensions: over a list of blocks, whose rows run along the last dimension."""

    blocks: Sequence[tuple[int, ...]]

    @property
    def side(self) -> int:
        """Positions along a block."""
        return SIDES[len(self.blocks[0]) - 1]

    @property
    def num_places(self) -> int:
        return len(self.blocks) * self.side ** len(self.blocks[0])

    @property
    def _span(self) -> int:
        """Positions along what filters meet over a block."""
        return self.side + self.filter_length - 1

    def draw(self, head: int) -> list[Tensor]:
        """What filters meet over each block: [K, *positions, R] each."""
        key, side, span = self.key.fold(head), self.side, self._span
        dims = len(self.blocks[0])
        shape = (self.width, *(side,) * dims, self.realizations)
        drawn: dict[tuple[int, ...], Tensor] = {}
        out = []
        for block in self.blocks:
            z = torch.empty((self.width, *(span,) * dims, self.realizations), device=self.device)
            for offset in product(range(-(-span // side)), repeat=dims):
                name = tuple(b + o for b, o in zip(block, offset, strict=True))
                if name not in drawn:
                    drawn[name] = key.fold(*name).normal(*shape, device=self.device) * self.scale
                part = z[(slice(None), *(slice(o * side, (o + 1) * side) for o in offset))]
                part.copy_(drawn[name][tuple(slice(size) for size in part.shape)])
            out.append(z)
        return out

    def windows(self, drawn: list[Tensor]) -> Iterator[tuple[slice, Tensor]]:
        side, start = self.side, 0
        for z in drawn:
            for first in product(range(side), repeat=z.dim() - 3):
                rows = tuple(slice(i, i + self.filter_length) for i in first)
                yield slice(start, start + side), z[(slice(None), *rows)].flatten(1, -2)
                start += side

    def corner(self, drawn: list[Tensor]) -> Tensor:
        z = drawn[0]
        taps = (slice(self.filter_length),) * (z.dim() - 2)
        return z[(slice(None), *taps)].flatten(1, -2)

    def matrix(self, taps: Tensor) -> Tensor:
        return _toeplitz(taps, self.side, self._span).movedim(-2, 1).flatten(2)

    def taps(self, matrix: Tensor) -> Tensor:
        others = (self.filter_length,) * (len(self.blocks[0]) - 1)
        matrix = matrix.unflatten(-1, (*others, self._span)).movedim(1, -2)
        return _diagonal_sums(matrix, self.filter_length)


def _toeplitz(taps: Tensor, rows: int, width: int) -> Tensor:
    """[.., P] -> [.., rows, width]: row i holds the taps from column i on."""
    padded = F.pad(taps, (rows - 1, width - taps.shape[-1]))
    return padded.unfold(-1, width, 1).flip(-2)


def _diagonal_sums(matrix: Tensor, length: int) -> Tensor:
    """The transpose of `_toeplitz`: the sums along diagonals, [.., rows, width] -> [.., length]."""
    # Entry (i, i + p) of rows of width w lies at i·(w + 1) + p: in rows of w + 1, at column p.
    rows, width = matrix.shape[-2:]
    skewed = F.pad(matrix.flatten(-2), (0, rows)).unflatten(-1, (rows, width + 1))
    return skewed.sum(-2)[..., :length]
