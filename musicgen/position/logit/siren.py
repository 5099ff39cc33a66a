"""SIREN: a sine network from a lag to its encoding."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from musicgen.errors import ParameterError
from musicgen.position.base import Coordinates, at_least_fp32
from musicgen.position.logit.base import RelativeEncoding
from musicgen.validation import check_int


class SIREN(RelativeEncoding):
    """Relative encodings by a sine network of the lag (Alfons 2022, algorithms 4 and 5).

    Lags are normalised by the training length N to x = lag / (N − 1) in each dimension, and clamped
    to |x| ≤ 1: lags beyond the training length share the encoding of the furthest one.

    Args:
        training_length: N, one number for each coordinate, in its unit: tokens of the index, grid
            steps of musical time, semitones of pitch.
        depth: number of layers, of which the last is linear; at least 2.
        omega_first, omega: factor ω in the sines of the first layer, and of the other layers.

    Raises:
        ParameterError: `training_length` does not have one number for each coordinate.
    """

    name = "siren"
    reach: Tensor

    def __init__(
        self,
        *args: int,
        training_length: int | Sequence[int],
        depth: int = 3,
        omega_first: float = 10.0,
        omega: float = 10.0,
        coordinates: Coordinates = "index",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, coordinates=coordinates, **kwargs)
        check_int("depth", depth, 2)
        sizes = [training_length] if isinstance(training_length, int) else list(training_length)
        if len(sizes) != self.num_dims:
            expected = f"expected {self.num_dims}, one number for each of coordinates={coordinates}"
            raise ParameterError("training_length", training_length, expected)
        self.omegas = [omega_first, *[omega] * (depth - 2)]
        self.register_buffer("reach", torch.tensor(sizes).float().sub(1).clamp(min=1))
        # Not nn.Linear, whose weights a model initialises in its own way.
        layers, dim, dims = self.num_layers, self.model_dim, self.num_dims
        first = torch.empty(layers, dim, dims).uniform_(-1, 1) / dims
        limit = (6 / dim) ** 0.5 / omega
        hidden = torch.empty(depth - 2, layers, dim, dim).uniform_(-limit, limit)
        last = torch.randn(layers, dim, dim) * (2 / dim) ** 0.5
        self.weights = nn.ParameterList([first, *hidden, last])
        self.biases = nn.ParameterList([torch.zeros(layers, dim) for _ in range(depth)])

    def encodings(self, lags: Tensor, layer: int) -> Tensor:
        x = (lags / at_least_fp32(self.reach)[0]).clamp(-1, 1)
        layers = zip(self.weights, self.biases, strict=True)
        *sines, last = (at_least_fp32(w[layer], b[layer]) for w, b in layers)
        for omega, parameters in zip(self.omegas, sines, strict=True):
            x = torch.sin(omega * F.linear(x, *parameters))
        return F.linear(x, *last)
