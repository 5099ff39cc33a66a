"""Transformer-XL's relative encoding: a linear layer on sinusoids of the lag."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from musicgen.position.absolute import sinusoids
from musicgen.position.logit.base import RelativeEncoding


class TransformerXL(RelativeEncoding):
    """Transformer-XL (Dai et al. 2019, §3.3; Alfons 2022, algorithm 3): P = W s(lag) + b.

    s are fixed sinusoids. b shifts all logits of a query equally, which matters only with a span.
    In n dimensions, each dimension has an equal share of the sinusoids.
    """

    name = "transformer_xl"

    def __init__(self, *args: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Not nn.Linear, whose weights the model initialises itself. Initialised as in SIREN.
        layers, dim = self.num_layers, self.model_dim
        self.weight = nn.Parameter(torch.randn(layers, dim, dim) * (2 / dim) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(layers, dim))

    def encodings(self, lags: Tensor, layer: int) -> Tensor:
        width = -(-self.model_dim // self.num_dims)
        waves = sinusoids(lags[..., None], width).flatten(-2)[..., : self.model_dim]
        return F.linear(waves.to(self.weight.dtype), self.weight[layer], self.bias[layer])
