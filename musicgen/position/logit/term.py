"""Terms that an encoding adds to attention logits, and tables of their values at all lags."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from musicgen.errors import UserError

MAX_LAGS = 1 << 20
"""Largest table in several dimensions, in lags; each may have a vector of the model's width."""

LagBounds = tuple[tuple[int, int], ...]  # first and last lag of each dimension


@dataclass(frozen=True)
class LogitTerm:
    """The term that one layer adds to logits. A part that is None adds nothing.

    With the lag x, key position minus query position, the logit of a query and a key is

        logit_scale · ((q + content_offset)·k + (q + position_offset)·encoding(x)) + bias(x)

    Lags are integers [N, num_dims]; `encoding` and `bias` return fp32.
    """

    content_offset: Tensor | None = None  # [H, K]
    position_offset: Tensor | None = None  # [H, K]
    encoding: Callable[[Tensor], Tensor] | None = None  # [N, num_dims] -> [H, N, K]
    bias: Callable[[Tensor], Tensor] | None = None  # [N, num_dims] -> [H, N]

    def content_query(self, q: Tensor) -> Tensor:
        """Return q + content_offset, the factor on keys without `logit_scale`: [B, L, H, K]."""
        return q if self.content_offset is None else q + self.content_offset.to(q.dtype)

    def position_query(self, q: Tensor, logit_scale: float) -> Tensor:
        """Return the factor on `values`: [B, L, H, K'].

        It is logit_scale · (q + position_offset), and a 1 for the bias.
        """
        parts = []
        if self.encoding is not None:
            offset = self.position_offset
            parts.append((q if offset is None else q + offset.to(q.dtype)) * logit_scale)
        if self.bias is not None:
            parts.append(torch.ones_like(q[..., :1]))
        return torch.cat(parts, dim=-1)

    def values(self, lags: Tensor) -> Tensor:
        """Return the encodings and the bias of lags, concatenated: [N, num_dims] -> [H, N, K']."""
        parts = [] if self.encoding is None else [self.encoding(lags)]
        if self.bias is not None:
            parts.append(self.bias(lags)[..., None])
        return torch.cat(parts, dim=-1)


class LagTable(NamedTuple):
    """The values of a term at all lags within bounds; the last dimension varies fastest."""

    values: Tensor  # [H, N, K']
    bounds: LagBounds
    columns: tuple[int, ...]  # of positions that are read

    def rows(self, lags: Tensor) -> Tensor:
        """Return the index in `values` of each lag: [B, Lq, Lk, P] -> [B, 1, Lq, Lk].

        Lags outside of the bounds are clamped to them.
        """
        row = torch.zeros_like(lags[..., 0])
        for column, (low, high) in zip(self.columns, self.bounds, strict=True):
            row = row * (high - low + 1) + (lags[..., column].clamp(low, high) - low)
        return row[:, None]


@dataclass(frozen=True)
class LayerLogits:
    """The logit term of one layer for one block of tokens."""

    term: LogitTerm
    positions: Tensor  # [1|B, L, P]
    columns: tuple[int, ...]  # of positions that are read
    cache: list[LagTable]  # the last table computed for this sequence

    def table(self, column_bounds: LagBounds) -> LagTable:
        """Return a table with all lags within the bounds: the cached one if it has them.

        Raises:
            UserError: in several dimensions, the table would have more than `MAX_LAGS` lags.
        """
        bounds = tuple(column_bounds[column] for column in self.columns)
        for table in self.cache:
            if all(
                first <= low and high <= last
                for (first, last), (low, high) in zip(table.bounds, bounds, strict=True)
            ):
                return table
        if self.cache:  # in decoding, the lags grow with every token: make room for more
            wide = tuple((-_next_power_of_two(-low), _next_power_of_two(h)) for low, h in bounds)
            bounds = wide if len(wide) == 1 or _size(wide) <= MAX_LAGS else bounds
        if len(bounds) > 1 and _size(bounds) > MAX_LAGS:
            raise UserError(
                "a positional encoding on attention logits needs a table of all lags, and these "
                f"coordinates have {_size(bounds):,}; use fewer coordinates or shorter sequences"
            )
        device = self.positions.device
        axes = [torch.arange(low, high + 1, device=device) for low, high in bounds]
        lags = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, -2)
        with torch.autocast(device.type, enabled=False):
            self.cache[:] = [LagTable(self.term.values(lags), bounds, self.columns)]
        return self.cache[0]


def _size(bounds: LagBounds) -> int:
    return math.prod(high - low + 1 for low, high in bounds)


def _next_power_of_two(number: int) -> int:
    """Round a positive number up to a power of two; return others unchanged."""
    return 1 << (number - 1).bit_length() if number > 0 else number
