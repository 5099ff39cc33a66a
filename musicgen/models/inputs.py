"""What a model sees of each token: learned vectors, which are summed.

The first input is called with the tokens, each other one with what its `read` returns.
"""

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


class TokenEmbedding(nn.Embedding):
    """One vector for each token of the vocabulary."""


class LaggedEmbedding(nn.Embedding):
    """One vector for each token of the vocabulary: of the token that is `lag` tokens earlier.

    In layouts that repeat, it tells every layer what stands in the same place of an earlier frame
    or bar, such as the pitch that a voice a bar ahead has now, which linear attention finds only
    with difficulty. Before the beginning stands the last token of the vocabulary, padding.
    """

    def __init__(self, lag: int, vocab_size: int, dim: int) -> None:
        check_int("lags", lag)
        super().__init__(vocab_size, dim)
        self.lag = lag

    def read(self, positions: Tensor, recent: Tensor) -> Tensor:
        """Return the tokens, of what `with_recent` returned. [1|B, L, P], [B, N + L] -> [B, L]."""
        length = positions.shape[1]
        first = recent.shape[1] - length - self.lag
        return (recent[:, first : first + length] - 1) % self.num_embeddings


class CycleEmbedding(nn.Embedding):
    """One vector for each place in a cycle of tokens: of the token index modulo its length.

    It tells tokens apart in layouts that repeat, such as the voices of a frame and the frames of a
    beat, at any length.
    """

    def read(self, positions: Tensor, recent: Tensor | None) -> Tensor:
        return positions[..., 0].long() % self.num_embeddings


def build_inputs(
    vocab_size: int | None,
    input_dim: int | None,
    dim: int,
    lags: Sequence[int],
    cycles: Sequence[int],
) -> nn.ModuleDict:
    """Build the inputs of tokens, or of vectors of `input_dim` numbers if `vocab_size` is None."""
    if vocab_size is None:
        assert input_dim is not None
        modules: dict[str, nn.Module] = {"vector": nn.Linear(input_dim, dim)}
    else:
        modules = {"embedding": TokenEmbedding(vocab_size, dim)}
        modules |= {f"lag_{lag}": LaggedEmbedding(lag, vocab_size, dim) for lag in lags}
    modules |= {f"cycle_{length}": CycleEmbedding(length, dim) for length in cycles}
    return nn.ModuleDict(modules)
