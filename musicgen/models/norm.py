"""Normalisation of tokens."""

from typing import Any

import torch
from torch import Tensor, nn


class LayerNorm(nn.LayerNorm):
    """Layer normalisation (Ba et al. 2016): each token by itself."""

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Normalise [B, L, D]."""
        return super().forward(x)


class BatchNorm(nn.Module):
    """Batch normalisation (Ioffe and Szegedy 2015) over the tokens that are not padding.

    In training, a token's output depends on all tokens of the batch, also on later ones.

    Args:
        dim: number of features D.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(dim)

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Normalise [B, L, D]; padding, false in `key_mask` [B, L], becomes zero."""
        if key_mask is None:
            return self.norm(x.flatten(0, 1)).view_as(x)
        out = torch.zeros_like(x)
        out[key_mask] = self.norm(x[key_mask]).to(x.dtype)
        return out


NORMS: dict[str, Any] = {"layer": LayerNorm, "batch": BatchNorm}
