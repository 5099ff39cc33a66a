"""Encodings that act on attention logits.

Transformer-XL and SIREN share four terms (Dai et al. 2019, eq. 4; Alfons 2022, formula 1), for
query i and key j:

    A_ij = q_i·k_j + q_i·P_(j−i) + u·k_j + v·P_(j−i)

u and v are learned biases of a layer. P has one vector of the model's width for each signed lag,
key position minus query position. Each head uses a slice of u, v and P, as of q and k.
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
    """Base class of encodings that add a `LogitTerm` to logits; a subclass declares the term."""

    sites = frozenset({Site.LOGIT})
    relative = "exact"

    @abstractmethod
    def logit_term(self, layer: int) -> LogitTerm:
        """Return the term of a layer."""

    def kernel(self, lags: Tensor, layer: int | None = None) -> Tensor | None:
        """Return the scaled encodings P of the lags, by which q_d is multiplied: [H, K, N].

        The norm of an encoding is the standard deviation of q·P for queries with independent
        entries of variance 1.
        """
        encoding = self.logit_term(layer or 0).encoding
        if encoding is None:
            return None
        return encoding(-lags.reshape(-1, self.num_dims)).mT * self.logit_scale

    def logit_bias(self, lags: Tensor, layer: int | None = None) -> Tensor:
        """Return the term for a query of zeros at the lags: [H, 1, N]."""
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
