"""Learned embeddings of the tokens at fixed distances before a token."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from musicgen.validation import check_int


def with_recent(
    tokens: Tensor, key_mask: Tensor | None, recent: Tensor | None, size: int
) -> Tensor:
    """Return the ids plus one of tokens [B, L] and of `size` tokens before: [B, size + L].

    0 stands for padding and for what is before the beginning.

    Args:
        key_mask: [B, L], false at padding.
        recent: the last `size` of what this returned for the tokens before; None: there are none.
    """
    numbers = tokens + 1
    if key_mask is not None:
        numbers = numbers * key_mask
    if recent is None:
        recent = numbers.new_zeros(len(numbers), size)
    return torch.cat((recent, numbers), dim=1)


class LaggedEmbedding(nn.Module):
    """The sum of one learned vector for each lag: of the token that many tokens earlier.

    In layouts that repeat, it tells every layer what stands in the same place of an earlier frame
    or bar, such as the pitch that a voice a bar ahead has now, which linear attention finds only
    with difficulty.

    Args:
        lags: in tokens.
        vocab_size: V, padding included, which is the last; its vector is also that of lags that
            reach beyond the beginning.
        dim: model width D.
    """

    def __init__(self, lags: Sequence[int], vocab_size: int, dim: int) -> None:
        super().__init__()
        for lag in lags:
            check_int("lags", lag)
        self.lags, self.vocab_size = tuple(lags), vocab_size
        self.tables = nn.ModuleList(nn.Embedding(vocab_size, dim) for _ in lags)

    def forward(self, seen: Tensor, length: int) -> Tensor:
        """Return the sums of the last L tokens [B, L, D], from the result of `with_recent`."""
        ids = (seen - 1) % self.vocab_size
        first = seen.shape[1] - length
        vectors = [
            table(ids[:, first - lag : first - lag + length])
            for lag, table in zip(self.lags, self.tables, strict=True)
        ]
        return torch.stack(vectors).sum(0)
