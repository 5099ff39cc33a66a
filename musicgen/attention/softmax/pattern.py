"""Which pairs of queries and keys softmax attention computes."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from musicgen.attention.span import LayerSpan
from musicgen.position.base import LagBounds

# Queries in a block.
BLOCK = 128

Index = slice | Tensor


@dataclass(frozen=True)
class AttentionPattern:
    """The visible pairs of queries and keys, and their lags."""

    q_positions: Tensor  # [1|B, Lq, P]
    k_positions: Tensor  # [1|B, Lk, P]
    last: Tensor | None  # [1|B, Lq], index of each query's last visible key; None: all are visible
    key_mask: Tensor | None  # [B, Lk], true where a key is visible
    span: LayerSpan | None
    num_dims: int  # number of coordinates with a lag; they are the first columns of positions
    same_tokens: bool  # queries and keys belong to the same tokens

    @property
    def window(self) -> tuple[int, ...] | None:
        """The furthest visible lag in each dimension; None: no limit."""
        return None if self.span is None else self.span.window

    @cached_property
    def consecutive(self) -> bool:
        """Whether positions grow by 1 from each token to the next."""
        steps = self.k_positions[..., 0].diff(dim=-1)
        return self.same_tokens and self.num_dims == 1 and bool((steps == 1).all())

    def lag_bounds(self) -> LagBounds:
        """Return bounds on the lags of all visible pairs."""
        if self.consecutive:
            furthest = self.k_positions.shape[1] - 1
            if self.window is not None:
                furthest = min(furthest, self.window[0])
            return ((-furthest, 0 if self.last is not None else furthest),)
        q, k = (x.flatten(0, 1)[:, : self.num_dims] for x in (self.q_positions, self.k_positions))
        bounds = torch.stack((k.amin(0) - q.amax(0), k.amax(0) - q.amin(0)), dim=-1).tolist()
        for i, far in enumerate(self.window or ()):
            bounds[i] = max(bounds[i][0], -far), min(bounds[i][1], far)
        return tuple((low, high) for low, high in bounds)

    def blocks(self) -> Iterator[tuple[Index, Index]]:
        """Yield blocks of queries, each query once, with all keys that one of them may see."""
        num_queries, num_keys = self.q_positions.shape[1], self.k_positions.shape[1]
        if not self.consecutive and self.window is not None and self.same_tokens:
            yield from self._tiles(self.window)
            return
        for start in range(0, num_queries, BLOCK):
            stop = min(start + BLOCK, num_queries)
            first, end = 0, num_keys
            if self.same_tokens and self.last is not None:
                end = stop
            if self.consecutive and self.window is not None:
                first = max(0, start - self.window[0])
                end = min(end, stop + self.window[0])
            yield slice(start, stop), slice(first, end)

    def _tiles(self, window: tuple[int, ...]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield blocks of queries that are close together in all dimensions of the window."""
        positions = self.k_positions[..., : len(window)]
        side = round(BLOCK ** (1 / len(window)))
        _, tile, counts = torch.unique(
            positions[0] // side, dim=0, return_inverse=True, return_counts=True
        )
        reach = torch.tensor(window, device=tile.device)
        for members in tile.argsort(stable=True).split(counts.tolist()):
            for queries in members.split(BLOCK):
                block = positions[:, queries].flatten(0, 1)
                low, high = block.amin(0) - reach, block.amax(0) + reach
                near = ((positions >= low) & (positions <= high)).all(-1).any(0)
                if self.last is not None:
                    near &= self.index <= queries.max()
                yield queries, near.nonzero()[:, 0]

    def lags(self, queries: Index, keys: Index) -> Tensor:
        """Return the lags, key position minus query position: [1|B, Lq, Lk, P]."""
        sequences = slice(1) if self.consecutive else slice(None)
        q, k = self.q_positions[sequences, queries], self.k_positions[sequences, keys]
        return k[:, None] - q[:, :, None]

    def visible(self, queries: Index, keys: Index, lags: Tensor) -> Tensor:
        """Return which pairs are visible: [1|B, Lq, Lk]."""
        visible = torch.ones_like(lags[..., 0], dtype=torch.bool)
        for i, reach in enumerate(self.window or ()):
            visible &= lags[..., i].abs() <= reach
        if self.last is not None:
            visible = visible & (self.index[keys] <= self.last[:, queries, None])
        if self.key_mask is not None:
            visible = visible & self.key_mask[:, None, keys]
        return visible

    @cached_property
    def index(self) -> Tensor:
        """Indices of the keys: [Lk]."""
        return torch.arange(self.k_positions.shape[1], device=self.k_positions.device)
