"""What a data module hands to a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

IGNORED = -100
"""A target that no loss counts."""


@dataclass
class Batch:
    """Token ids [B, L], and at each place the next one [B, L], `IGNORED` where there is none.

    Positions [B, L, 2], index and musical time, where a model reads them.
    """

    tokens: Tensor
    targets: Tensor
    positions: Tensor | None = None

    @property
    def num_targets(self) -> Tensor:
        return (self.targets != IGNORED).sum()

    def pin_memory(self) -> Batch:
        positions = None if self.positions is None else self.positions.pin_memory()
        return Batch(self.tokens.pin_memory(), self.targets.pin_memory(), positions)


def collate(
    windows: Sequence[NDArray[np.int64]],
    pad_id: int,
    locate: Callable[[NDArray[np.int64]], NDArray[np.int64]] | None = None,
) -> Batch:
    """Windows of up to L + 1 tokens, padded behind, as one batch of inputs and targets.

    With positions, where `locate` tells those of a window: [L] -> [L, 2].
    """
    length = max(len(window) for window in windows) - 1
    tokens = torch.full((len(windows), length), pad_id)
    targets = torch.full((len(windows), length), IGNORED)
    positions = None if locate is None else torch.zeros(len(windows), length, 2, dtype=torch.long)
    for row, window in enumerate(windows):
        ids = torch.from_numpy(np.ascontiguousarray(window))
        tokens[row, : len(ids) - 1] = ids[:-1]
        targets[row, : len(ids) - 1] = ids[1:]
        if positions is not None and locate is not None:
            positions[row, : len(ids) - 1] = torch.from_numpy(locate(window[:-1]))
    return Batch(tokens, targets, positions)
