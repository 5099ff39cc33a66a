"""Transformer-XL's relative encoding: fixed sinusoids of the lag, and a linear layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from musicgen.position.absolute import sinusoids
from musicgen.position.relative import RelativeEncoding


class TransformerXL(RelativeEncoding):
    """P = W s(lag) + b with fixed sinusoids s (Dai et al. 2019, §3.3; Alfons 2022, algorithm 3).

    With the bias b of the latter; b alone shifts all logits of a query alike, and so does nothing
    but under a span. Lags of any size are encoded: beyond the training length the sinusoids go on.
    In n dimensions each has its part of the sinusoids.
    """

    name = "transformer_xl"

    def __init__(self, *args: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # No nn.Linear: a model initialises those in its own way. Starts at the scale of SIREN's.
        layers, dim = self.num_layers, self.model_dim
        self.weight = nn.Parameter(torch.randn(layers, dim, dim) * (2 / dim) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(layers, dim))

    def encodings(self, lags: Tensor, layer: int) -> Tensor:
        part = -(-self.model_dim // self.num_dims)
        waves = torch.cat([sinusoids(lag, part) for lag in lags.split(1, dim=-1)], dim=-1)
        waves = waves[..., : self.model_dim]
        return F.linear(waves, self.weight[layer], self.bias[layer])
