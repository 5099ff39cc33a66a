"""Learned embeddings of where a token stands in cycles of fixed lengths."""

from collections.abc import Sequence

from torch import Tensor, nn


class PhaseEmbedding(nn.Module):
    """The sum of one learned vector for each cycle: of the token index modulo the cycle's length.

    It tells tokens apart in layouts that repeat, such as the voices of a frame and the frames of a
    beat, at any length.

    Args:
        cycles: lengths in tokens, each 2 or more.
        dim: model width D.
    """

    def __init__(self, cycles: Sequence[int], dim: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(cycle, dim) for cycle in cycles)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Add the vectors to embeddings [B, L, D] at the positions [1|B, L, P]."""
        index = positions[..., 0].long()
        for table in self.tables:
            assert isinstance(table, nn.Embedding)
            x = x + table(index % table.num_embeddings)
        return x
