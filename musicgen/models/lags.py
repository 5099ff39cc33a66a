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
        vocab_size: V.
        dim: model width D.
    """

    def __init__(self, lags: Sequence[int], vocab_size: int, dim: int) -> None:
        super().__init__()
        for lag in lags:
            check_int("lags", lag)
        self.lags = tuple(lags)
        # Row 0 is for lags that reach beyond the beginning, and for padding.
        self.tables = nn.ModuleList(nn.Embedding(1 + vocab_size, dim) for _ in lags)

    def forward(
        self, tokens: Tensor, key_mask: Tensor | None, before: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the sums [B, L, D], and `before` of the tokens that follow.

        Args:
            tokens: [B, L] ids.
            key_mask: [B, L], false at padding.
            before: [B, largest lag], the tokens before these as rows of the tables; None: none.
        """
        rows, longest = tokens + 1, max(self.lags)
        if key_mask is not None:
            rows = rows * key_mask
        if before is None:
            before = rows.new_zeros(len(rows), longest)
        seen = torch.cat((before, rows), dim=1)
        length = tokens.shape[1]
        starts = [longest - lag for lag in self.lags]
        vectors = [
            table(seen[:, start : start + length])
            for start, table in zip(starts, self.tables, strict=True)
        ]
        return torch.stack(vectors).sum(0), seen[:, -longest:].clone()
