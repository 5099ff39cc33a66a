"""Inputs of the model: embeddings of tokens, of earlier tokens, and of places in cycles."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from musicgen.errors import ParameterError
from musicgen.validation import check_int


def build_inputs(
    vocab_size: int | None,
    dim: int,
    *,
    input_dim: int | None,
    lags: Sequence[int],
    cycles: Sequence[int],
    causal: bool,
) -> nn.ModuleDict:
    """Return the modules whose vectors of a token are summed, by name; the embedding first."""
    if lags and (vocab_size is None or not causal):
        expected = "expected [] in models of vectors, and of all tokens at once"
        raise ParameterError("lags", list(lags), expected)
    if vocab_size is None:
        assert input_dim is not None
        inputs: dict[str, nn.Module] = {"vector": nn.Linear(input_dim, dim)}
    else:
        inputs = {"embedding": nn.Embedding(vocab_size, dim)}
        inputs |= {f"lag_{lag}": LaggedEmbedding(lag, vocab_size, dim) for lag in lags}
    inputs |= {f"cycle_{length}": CycleEmbedding(length, dim) for length in cycles}
    return nn.ModuleDict(inputs)


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


class LaggedEmbedding(nn.Embedding):
    """One vector for each token of the vocabulary: of the token that is `lag` tokens earlier.

    In sequences with a regular layout, it gives every layer the token at the same place of an
    earlier frame or bar, which linear attention finds only with difficulty: for example the current
    pitch of a voice that was read a bar ahead. Before the beginning it is padding, the last token.
    """

    def __init__(self, lag: int, vocab_size: int, dim: int) -> None:
        check_int("lags", lag)
        super().__init__(vocab_size, dim)
        self.lag = lag

    def read(self, positions: Tensor, recent: Tensor) -> Tensor:
        """Return the lagged tokens from `with_recent`: [1|B, L, P], [B, N + L] -> [B, L]."""
        length = positions.shape[1]
        first = recent.shape[1] - length - self.lag
        return (recent[:, first : first + length] - 1) % self.num_embeddings


class CycleEmbedding(nn.Embedding):
    """One vector for each place in a cycle of tokens: of the token index modulo its length.

    It tells tokens apart in sequences with a regular layout, such as voices and frames of a beat.
    """

    def read(self, positions: Tensor, recent: Tensor | None) -> Tensor:
        """Return each token's place in the cycle: [1|B, L, P] -> [1|B, L]."""
        return positions[..., 0].long() % self.num_embeddings
