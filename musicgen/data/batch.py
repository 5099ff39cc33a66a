"""What a data module hands to a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

IGNORED = -100
"""A target that no loss counts."""


@dataclass
class Batch:
    """Token ids [B, L], and at each place the next one [B, L], `IGNORED` where there is none."""

    tokens: Tensor
    targets: Tensor

    @property
    def num_targets(self) -> Tensor:
        return (self.targets != IGNORED).sum()

    def pin_memory(self) -> Batch:
        return Batch(self.tokens.pin_memory(), self.targets.pin_memory())


def collate(windows: Sequence[NDArray[np.int64]], pad_id: int) -> Batch:
    """Windows of up to L + 1 tokens, padded behind, as one batch of inputs and targets."""
    length = max(len(window) for window in windows) - 1
    tokens = torch.full((len(windows), length), pad_id)
    targets = torch.full((len(windows), length), IGNORED)
    for row, window in enumerate(windows):
        ids = torch.from_numpy(np.ascontiguousarray(window))
        tokens[row, : len(ids) - 1] = ids[:-1]
        targets[row, : len(ids) - 1] = ids[1:]
    return Batch(tokens, targets)
