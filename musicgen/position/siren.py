"""SIREN: a small network of sines from a lag in n dimensions to its encoding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from musicgen.errors import UserError
from musicgen.position.relative import RelativeEncoding


class SIREN(RelativeEncoding):
    """Relative encodings from sines of learned frequencies (Alfons 2022, algorithms 4 and 5).

    Lags are normalised by the training length N, to x = lag / (N − 1) in each dimension, whatever
    the length of the input. Beyond the training length |x| would pass 1, where nothing was learned:
    x stops there, so that all lags further away share the encoding of the furthest one known.

    Args:
        training_length: N; in n dimensions one number for each. Of musical time, in its grid steps.
        depth: layers of the network, the last of them linear.
        omega_first, omega: ω of the first sines, and of those after.

    The other arguments are `PositionalEncoding`'s.
    """

    name = "siren"
    reach: Tensor

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        width: int,
        model_dim: int,
        *,
        training_length: int | Sequence[int],
        depth: int = 3,
        omega_first: float = 10.0,
        omega: float = 10.0,
        coordinates: str | int = "index",
    ) -> None:
        super().__init__(num_layers, num_heads, width, model_dim, coordinates=coordinates)
        sizes = [training_length] if isinstance(training_length, int) else list(training_length)
        if len(sizes) != self.num_dims:
            raise UserError(
                f"model.position.training_length={training_length}: "
                f"model.position.coordinates={coordinates} reads {self.num_dims} of each position; "
                "give as many numbers"
            )
        if depth < 2:
            raise UserError(f"model.position.depth={depth}: a SIREN has 2 layers or more")
        self.omega_first, self.omega = omega_first, omega
        self.register_buffer("reach", torch.tensor(sizes).float().sub(1).clamp(min=1))
        # No nn.Linear: a model initialises those in its own way.
        first = torch.empty(num_layers, model_dim, len(sizes)).uniform_(-1, 1) / len(sizes)
        limit = (6 / model_dim) ** 0.5 / omega
        hidden = torch.empty(depth - 2, num_layers, model_dim, model_dim).uniform_(-limit, limit)
        last = torch.randn(num_layers, model_dim, model_dim) * (2 / model_dim) ** 0.5
        self.weights = nn.ParameterList([first, *hidden, last])
        self.biases = nn.ParameterList([torch.zeros(num_layers, model_dim) for _ in range(depth)])

    def encodings(self, lags: Tensor, layer: int) -> Tensor:
        x = (lags / self.reach).clamp(-1, 1)
        omega = self.omega_first
        *sines, last = zip(self.weights, self.biases, strict=True)
        for weight, bias in sines:
            x = torch.sin(omega * F.linear(x, weight[layer], bias[layer]))
            omega = self.omega
        return F.linear(x, last[0][layer], last[1][layer])
