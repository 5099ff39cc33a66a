"""Trigram model: the baseline of the loss by position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

IntArray = NDArray[np.int64]

ORDER = 3


class InterpolatedTrigram:
    """Trigram model with Witten-Bell interpolation down to the uniform distribution.

        p(w | h) = (c(h w) + t(h) · p(w | h')) / (c(h) + t(h))

    c(h) and t(h) count the tokens and the distinct tokens seen after the context h; h' is h without
    its oldest token (Witten & Bell 1991, method C; Chen & Goodman 1999, section 2.4).

    Args:
        sequences: the tokens to count, [length] each.
    """

    def __init__(self, vocab_size: int, sequences: Sequence[ArrayLike]) -> None:
        # Three tokens are packed into one int64.
        assert 0 < vocab_size**ORDER < 2**63, f"vocab_size={vocab_size}"
        self.vocab_size = vocab_size
        arrays = [np.asarray(sequence, np.int64) for sequence in sequences]
        # By order: the sorted distinct n-grams and a bound above them, and the number of
        # occurrences before each.
        self._orders: list[tuple[IntArray, IntArray]] = []
        for order in range(1, ORDER + 1):
            packed = [self._pack(tokens, order) for tokens in arrays]
            together = np.concatenate([np.empty(0, np.int64), *packed])
            ngrams, counts = np.unique(together, return_counts=True)
            self._orders.append((np.append(ngrams, 2**63 - 1), np.append(0, counts.cumsum())))

    def losses(self, sequence: ArrayLike) -> NDArray[np.float64]:
        """Compute −log p of every token [length] given the two before it, in nats.

        The first token has unigram and the second bigram probability.
        """
        tokens = np.asarray(sequence, np.int64)
        probability = np.full(len(tokens), 1 / self.vocab_size)
        for order, (ngrams, before) in enumerate(self._orders, start=1):
            packed = self._pack(tokens, order)
            context = packed - packed % self.vocab_size  # the first n-gram with the same context
            index = np.searchsorted(ngrams, packed)
            count = before[index + (ngrams[index] == packed)] - before[index]
            start, end = np.searchsorted(ngrams, [context, context + self.vocab_size])
            total, types = before[end] - before[start], end - start
            lower = probability[order - 1 :]  # a view; shorter histories keep the lower order
            seen = total > 0
            lower[seen] = ((count + types * lower) / np.maximum(1, total + types))[seen]
        return -np.log(probability)

    def _pack(self, tokens: IntArray, order: int) -> IntArray:
        """Encode every n-gram in base V, oldest token first: [L] -> [max(0, L - order + 1)]."""
        length = max(0, len(tokens) - order + 1)
        packed = np.zeros(length, np.int64)
        for offset in range(order):
            packed = packed * self.vocab_size + tokens[offset : offset + length]
        return packed
