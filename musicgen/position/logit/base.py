"""Encodings that act on attention logits.

Transformer-XL and SIREN share four terms (Dai et al. 2019, eq. 4; Alfons 2022, formula 1), for
query i and key j:

    A_ij = q_i·k_j + q_i·P_(j−i) + u·k_j + v·P_(j−i)

with biases u, v of a layer, and one vector P of the model's width for each signed lag, key minus
query. Heads take slices of u, v and P, as they do of q and k.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from musicgen.position.base import LayerCode, PositionalEncoding, Site
from musicgen.position.logit.term import LagTable, LayerLogits, LogitTerm
from musicgen.random import NoiseKey


class LogitEncoding(PositionalEncoding):
    """Base of encodings that add a `LogitTerm`; a subclass declares one for each layer."""

    sites = frozenset({Site.LOGIT})
    relative = "exact"

    @abstractmethod
    def logit_term(self, layer: int) -> LogitTerm:
        """Declare a layer's term."""

    def kernel(self, lags: Tensor, layer: int | None = None) -> Tensor | None:
        """Return the scaled encodings of the lags, by which q_d is multiplied: [H, K, N].

        The norm at a lag is the standard deviation of q·encoding over queries of independent
        entries of variance 1.
        """
        encoding = self.logit_term(layer or 0).encoding
        if encoding is None:
            return None
        return encoding(-lags.reshape(-1, self.num_dims)).mT * self.logit_scale

    def logit_bias(self, lags: Tensor, layer: int | None = None) -> Tensor:
        """Return the term of a query of zeros at the lags: [H, 1, N]."""
        term = self.logit_term(layer or 0)
        values = term.values(-lags.reshape(-1, self.num_dims))  # [H, N, K']
        q = values.new_zeros(1, self.num_heads, self.width)
        return term.position_query(q, self.logit_scale).transpose(0, 1) @ values.mT

    def forward(
        self, positions: Tensor, *, noise: NoiseKey, state: Any = None
    ) -> tuple[Sequence[LayerCode], Any]:
        caches: list[list[LagTable]] = state or [[] for _ in range(self.num_layers)]
        logits = (
            LayerLogits(self.logit_term(layer), positions, self.columns, cache)
            for layer, cache in enumerate(caches)
        )
        return [LayerCode(logits=layer_logits) for layer_logits in logits], caches


class RelativeEncoding(LogitEncoding):
    """Base of encodings with Transformer-XL's four terms; a subclass computes P.

    Each layer has its own P, u (`content_bias`) and v (`position_bias`).
    """

    def __init__(self, *args: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        sizes = self.num_layers, self.num_heads, self.width
        self.content_bias = nn.Parameter(torch.zeros(sizes))
        self.position_bias = nn.Parameter(torch.zeros(sizes))

    @abstractmethod
    def encodings(self, lags: Tensor, layer: int) -> Tensor:
        """Compute a layer's P in fp32: integer lags [N, num_dims] -> [N, D].

        Heads take slices of the last dimension.
        """

    def logit_term(self, layer: int) -> LogitTerm:
        def encoding(lags: Tensor) -> Tensor:
            values = self.encodings(lags, layer).unflatten(-1, (self.num_heads, -1))
            return values.transpose(0, 1)

        return LogitTerm(self.content_bias[layer], self.position_bias[layer], encoding)
