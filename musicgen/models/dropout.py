"""Dropout with a mask that a CPU draws quickly."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Dropout(nn.Dropout):
    """torch's dropout, but for how a CPU draws: 16 random bits for each element.

    torch draws every element by itself, which was an eighth of a training step. The probability is
    rounded to a 65,536th, and the mask that the backward keeps takes a byte an element.
    """

    def forward(self, x: Tensor) -> Tensor:
        dropped = round(self.p * (1 << 16))
        if not self.training or x.device.type != "cpu" or not 0 < dropped < 1 << 16:
            return super().forward(x)
        words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(1 << 63), None)
        bits = words.view(torch.int16)[: x.numel()].view(x.shape)
        kept = bits >= dropped - (1 << 15)
        return torch.where(kept, x * ((1 << 16) / ((1 << 16) - dropped)), 0)
