"""Learned embeddings of the tokens at fixed distances before a token."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from musicgen.validation import check_int


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

    def forward(
        self, tokens: Tensor, key_mask: Tensor | None, before: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the sums [B, L, D], and `before` of the tokens that follow.

        Args:
            tokens: [B, L] ids.
            key_mask: [B, L], false at padding.
            before: [B, largest lag], the ids of the tokens before these plus one, 0 for padding;
                None: there are none.
        """
        numbers, longest = tokens + 1, max(self.lags)
        if key_mask is not None:
            numbers = numbers * key_mask
        if before is None:
            before = numbers.new_zeros(len(numbers), longest)
        seen = torch.cat((before, numbers), dim=1)
        length = tokens.shape[1]
        starts = [longest - lag for lag in self.lags]
        ids = (seen - 1) % self.vocab_size
        vectors = [
            table(ids[:, start : start + length])
            for start, table in zip(starts, self.tables, strict=True)
        ]
        return torch.stack(vectors).sum(0), seen[:, -longest:].clone()
