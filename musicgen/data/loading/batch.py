"""Collation: windows of tokens, padded to tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import pad_sequence

from musicgen.batches import IGNORED, Batch


def collate(
    windows: Sequence[NDArray[np.int64]],
    pad_id: int,
    positions: Sequence[NDArray[np.int64]] | None = None,
) -> Batch:
    """Collate windows of up to L + 1 tokens into a batch, padded at the end.

    Args:
        positions: those of each window's inputs, up to [L, P]; None counts tokens.
    """
    length = max(len(window) for window in windows) - 1
    tokens = torch.full((len(windows), length), pad_id)
    targets = torch.full((len(windows), length), IGNORED)
    for row, window in enumerate(windows):
        ids = torch.from_numpy(np.ascontiguousarray(window))
        tokens[row, : len(ids) - 1] = ids[:-1]
        targets[row, : len(ids) - 1] = ids[1:]
    if positions is None:
        return Batch(tokens, targets, torch.arange(length)[None, :, None])
    rows = [torch.from_numpy(own) for own in positions]
    return Batch(tokens, targets, pad_sequence(rows, batch_first=True))


def collate_positioned(
    items: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]], pad_id: int
) -> Batch:
    """Collate items of `PositionedWindows`."""
    windows, positions = zip(*items, strict=True)
    return collate(windows, pad_id, positions)
