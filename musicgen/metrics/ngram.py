"""A trigram model: the baseline that a curve of losses is read against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

ORDER = 3


class _Counts(NamedTuple):
    """Counts of one order. An n-gram is a number in base V, its context all but the last digit."""

    ngrams: IntArray  # sorted
    counts: IntArray
    contexts: IntArray  # sorted
    totals: IntArray  # tokens seen after each context
    types: IntArray  # distinct ones among them


class InterpolatedTrigram:
    """Trigrams with Witten-Bell interpolation down to the uniform distribution.

        p(w | h) = (c(h w) + t(h) · p(w | h')) / (c(h) + t(h))

    with c(h) tokens and t(h) distinct tokens seen after the context h, and h' the context without
    its oldest token (Witten & Bell 1991, method C; Chen & Goodman 1999, section 2.4).
    """

    def __init__(self, vocab_size: int) -> None:
        # Three tokens are packed into one int64.
        assert 0 < vocab_size**ORDER < 2**63, f"vocab_size={vocab_size}"
        self.vocab_size = vocab_size
        self._orders: list[_Counts] = []

    def fit(self, sequences: Sequence[ArrayLike]) -> InterpolatedTrigram:
        """Count the n-grams of token sequences, each [length]; they do not cross sequences."""
        arrays = [self._check(sequence) for sequence in sequences]
        self._orders = []
        for order in range(1, ORDER + 1):
            packed = [self._pack(tokens, order) for tokens in arrays]
            ngrams, counts = np.unique(
                np.concatenate([np.empty(0, np.int64), *packed]), return_counts=True
            )
            contexts, first, types = np.unique(
                ngrams // self.vocab_size, return_index=True, return_counts=True
            )
            totals = np.add.reduceat(counts, first) if len(first) else counts
            self._orders.append(_Counts(ngrams, counts, contexts, totals, types))
        return self

    def losses(self, sequence: ArrayLike) -> FloatArray:
        """-log p of every token [length] given the two before it, in nats.

        The first token has the unigram's probability, the second the bigram's.
        """
        assert self._orders, "call fit first"
        tokens = self._check(sequence)
        probability = np.full(len(tokens), 1 / self.vocab_size)
        for order, table in enumerate(self._orders, start=1):
            ngrams = self._pack(tokens, order)
            contexts = ngrams // self.vocab_size
            count = _look_up(ngrams, table.ngrams, table.counts)
            total = _look_up(contexts, table.contexts, table.totals)
            types = _look_up(contexts, table.contexts, table.types)
            lower = probability[order - 1 :]  # a view; shorter histories keep the lower order
            seen = total > 0
            lower[seen] = ((count + types * lower) / np.maximum(1, total + types))[seen]
        return -np.log(probability)

    def _check(self, sequence: ArrayLike) -> IntArray:
        tokens = np.asarray(sequence, dtype=np.int64)
        assert tokens.ndim == 1, f"expected one sequence, got the shape {tokens.shape}"
        assert tokens.size == 0 or 0 <= tokens.min() <= tokens.max() < self.vocab_size
        return tokens

    def _pack(self, tokens: IntArray, order: int) -> IntArray:
        """Every n-gram as one integer: [length] -> [max(0, length - order + 1)]."""
        length = max(0, len(tokens) - order + 1)
        packed = np.zeros(length, np.int64)
        for offset in range(order):
            packed = packed * self.vocab_size + tokens[offset : offset + length]
        return packed


def _look_up(queries: IntArray, keys: IntArray, values: IntArray) -> IntArray:
    """`values` at the sorted `keys`, 0 for queries that are no key."""
    if not len(keys):
        return np.zeros_like(queries)
    index = np.minimum(np.searchsorted(keys, queries), len(keys) - 1)
    return np.where(keys[index] == queries, values[index], 0)
