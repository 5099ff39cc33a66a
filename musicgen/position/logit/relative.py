"""Transformer-XL and SIREN: a learned encoding per lag, whose product with queries is added.

They share four terms (Dai et al. 2019, eq. 4; Alfons 2022, formula 1), for query i and key j:

    A_ij = q_i·k_j + q_i·P_(j−i) + u·k_j + v·P_(j−i)

u and v are learned biases of a layer. P has one vector of the model's width per signed lag,
key position minus query position. Each head uses a slice of u, v and P, as of q and k.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from musicgen.errors import ParameterError
from musicgen.position.absolute import sinusoids
from musicgen.position.base import Coordinates, LogitTerm, at_least_fp32
from musicgen.position.logit import LogitEncoding
from musicgen.validation import check_float, check_int


class RelativeEncoding(LogitEncoding):
    """Base class of encodings with the four terms of Transformer-XL; a subclass computes P.

    Each layer has its own P, u (`content_bias`, [layers, H, K]) and v (`position_bias`, the same).
    """

    def __init__(self, *args: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        sizes = self.num_layers, self.num_heads, self.width
        self.content_bias = nn.Parameter(torch.zeros(sizes))
        self.position_bias = nn.Parameter(torch.zeros(sizes))

    @abstractmethod
    def encodings(self, lags: Tensor, layer: int) -> Tensor:
        """Return P of a layer in fp32, for integer lags: [N, num_dims] -> [N, D].

        Each head uses a slice of the last dimension.
        """

    def logit_term(self, layer: int) -> LogitTerm:
        def encoding(lags: Tensor) -> Tensor:
            values = self.encodings(lags, layer).unflatten(-1, (self.num_heads, -1))
            return values.transpose(0, 1)

        return LogitTerm(self.content_bias[layer], self.position_bias[layer], encoding)


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


class SIREN(RelativeEncoding):
    """Relative encodings by a sine network of the lag (Alfons 2022, algorithms 4 and 5).

    Lags are normalised by the training length N to x = lag / (N − 1) in each dimension, and clamped
    to |x| ≤ 1: lags beyond the training length share the encoding of the furthest one.

    Args:
        training_length: N, one number per coordinate, in its unit: tokens of the index, grid
            steps of musical time, semitones of pitch.
        depth: number of layers, at least 2; the last one is linear.
        omega_first, omega: factor ω in the sines of the first layer, and of the other layers.

    Raises:
        ParameterError: `training_length` does not have one number per coordinate.
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
        check_float("omega_first", omega_first, above=0)
        check_float("omega", omega, above=0)
        sizes = [training_length] if isinstance(training_length, int) else list(training_length)
        if len(sizes) != self.num_dims:
            expected = f"expected {self.num_dims}, one number for each of coordinates={coordinates}"
            raise ParameterError("training_length", training_length, expected)
        for size in sizes:
            check_int("training_length", size)
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
