"""Sizes, decays and masks that tests of linear attention share."""

import torch
from torch import Tensor

BATCH, HEADS, WIDTH, VALUES = 2, 3, 10, 7
DECAY = torch.tensor([-3.0, -0.2, -1e-3], dtype=torch.float64)  # by head


def decays(kind: str, length: int) -> Tensor | None:
    """Logarithms; by token: small ones, none but of some tokens, or of every size up to e^9."""
    noise = torch.rand(BATCH, length, HEADS, dtype=torch.float64)
    found = {
        "none": None,
        "head": DECAY,
        "mild": -0.2 * noise,
        "sparse": torch.where(noise < 0.05, -1e4, 0.0).double(),
        "wide": -(12 * noise - 3).exp(),
    }
    return found[kind]


def random_mask(length: int) -> Tensor:
    """Return [B, L], true at the first token."""
    mask = torch.rand(BATCH, length) > 0.3
    mask[:, 0] = True
    return mask
