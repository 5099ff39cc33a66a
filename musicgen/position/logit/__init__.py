"""Encodings that add a term to attention logits: their base class, ALiBi, Transformer-XL, SIREN."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from musicgen.position.base import (
    LagTable,
    LayerCode,
    LayerLogits,
    LogitTerm,
    PositionalEncoding,
    Site,
)
from musicgen.random import NoiseKey


class LogitEncoding(PositionalEncoding):
    """Base class of encodings that add a `LogitTerm` to logits; a subclass declares the term."""

    sites = frozenset({Site.LOGIT})
    relative = "exact"

    @abstractmethod
    def logit_term(self, layer: int) -> LogitTerm:
        """Return the term of a layer."""

    def kernel(self, lags: Tensor, layer: int = 0) -> Tensor | None:
        """Return the scaled encodings P of the lags, the factors on q_d: [H, K, N].

        The norm of an encoding is the standard deviation of q·P for queries with independent
        entries of variance 1.
        """
        encoding = self.logit_term(layer).encoding
        if encoding is None:
            return None
        return encoding(-lags.reshape(-1, self.num_dims)).mT * self.logit_scale

    def logit_bias(self, lags: Tensor, layer: int = 0) -> Tensor:
        """Return the term for a query of zeros at the lags: [H, 1, N]."""
        term = self.logit_term(layer)
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
