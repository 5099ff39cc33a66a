"""Inputs and heads of the model: what maps tokens to vectors, and vectors to logits."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from musicgen.errors import ParameterError, UserError, parameter_of
from musicgen.validation import check_float, check_int

_NUM_MUSICAL_KEYS = 24  # major and minor


def build_inputs(
    vocab_size: int | None,
    dim: int,
    *,
    input_dim: int | None,
    lags: Sequence[int],
    cycles: Sequence[int],
    causal: bool,
) -> nn.ModuleDict:
    """Return the modules whose outputs are summed per token, by name; the embedding first.

    Args:
        vocab_size: V; None: inputs are vectors of `input_dim` numbers.
        dim: model width D.
        lags: distances in tokens, each with a `LaggedEmbedding`.
        cycles: lengths in tokens, each with a `CycleEmbedding`.

    Raises:
        ParameterError: there are lags, but the model is not causal or has input vectors.
    """
    if lags and (vocab_size is None or not causal):
        expected = "expected [] with causal=false or with input vectors"
        raise ParameterError("lags", list(lags), expected)
    if vocab_size is None:
        assert input_dim is not None
        inputs: dict[str, nn.Module] = {"vector": nn.Linear(input_dim, dim)}
    else:
        inputs = {"embedding": nn.Embedding(vocab_size, dim)}
        inputs |= {f"lag_{lag}": LaggedEmbedding(lag, vocab_size, dim) for lag in lags}
    for length in cycles:
        check_int("cycles", length, 2)
    inputs |= {f"cycle_{length}": CycleEmbedding(length, dim) for length in cycles}
    return nn.ModuleDict(inputs)


def with_recent(
    tokens: Tensor, key_mask: Tensor | None, recent: Tensor | None, size: int
) -> Tensor | None:
    """Return the `size` tokens before these and these tokens, as ids plus one: [B, size + L].

    0 stands for padding and for places before the beginning of a sequence. None: `size` is 0.

    Args:
        tokens: ids [B, L].
        key_mask: [B, L], false at padding.
        recent: the last `size` columns of the previous result; None: there are no tokens before.
    """
    if size == 0:
        return None
    numbers = tokens + 1
    if key_mask is not None:
        numbers = numbers * key_mask
    if recent is None:
        recent = numbers.new_zeros(len(numbers), size)
    return torch.cat((recent, numbers), dim=1)


def find_positions(
    tokens: Tensor,
    positions: Tensor | None,
    start: Tensor | None,
    number: int,
    names: Sequence[str],
    compute: Callable[..., Any] | None,
) -> Tensor:
    """Return the positions of tokens, found where too few are given: [1|B, L, P].

    Args:
        tokens: [B, L].
        positions: the given ones, [1|B, L, P], or None.
        start: number of tokens before these, [B]; None: they begin their sequences.
        number: of the coordinates that the model reads.
        names: of these coordinates.
        compute: coordinates of ids by name, see `Transformer`.

    Raises:
        UserError: coordinates are missing, and cannot be computed.
    """
    if positions is not None and positions.shape[-1] >= number:
        return positions
    if positions is None and number == 1:
        indices = torch.arange(tokens.shape[1], device=tokens.device)[None, :, None]
        return indices if start is None else indices + start[:, None, None]
    if positions is None and start is None and compute is not None:
        found = np.stack([compute(ids, names) for ids in tokens.cpu().numpy()])
        return torch.from_numpy(found).to(tokens.device)
    given = "none were given, and they are not computed from these tokens; pass positions"
    if positions is not None:
        given = f"positions have {positions.shape[-1]}"
    raise UserError(
        f"the model reads {number} coordinates of each position, {', '.join(names)}, but {given}"
    )


class LaggedEmbedding(nn.Embedding):
    """An embedding of the token that is `lag` tokens earlier.

    In sequences with a regular layout, this is the token at the same place of an earlier frame or
    bar. An example is the current pitch of a voice that is read a bar ahead. Linear attention finds
    such a token only with difficulty. Before the beginning of a sequence it is the padding token,
    the last one of the vocabulary.
    """

    def __init__(self, lag: int, vocab_size: int, dim: int) -> None:
        check_int("lags", lag)
        super().__init__(vocab_size, dim)
        self.lag = lag

    def read(self, positions: Tensor, recent: Tensor) -> Tensor:
        """Return the ids of the lagged tokens: [B, L].

        Args:
            positions: [1|B, L, P]; only L is used.
            recent: what `with_recent` returned, [B, size + L].
        """
        length = positions.shape[1]
        first = recent.shape[1] - length - self.lag
        return (recent[:, first : first + length] - 1) % self.num_embeddings


class CycleEmbedding(nn.Embedding):
    """An embedding of the token index modulo the length of a cycle.

    In sequences with a regular layout, it tells the model which voice or which part of a beat a
    token belongs to.
    """

    def read(self, positions: Tensor, recent: Tensor | None) -> Tensor:
        """Return the index of each token in the cycle: positions [1|B, L, P] -> [1|B, L]."""
        return positions[..., 0].long() % self.num_embeddings


class MusicalKeyEmbedding(nn.Embedding):
    """An embedding of the musical key of each token: linear attention forgets it after some bars.

    Args:
        column: that of the coordinate `key` in positions.
    """

    def __init__(self, column: int, dim: int) -> None:
        super().__init__(1 + _NUM_MUSICAL_KEYS, dim)
        self.column = column

    def read(self, positions: Tensor, recent: Tensor | None) -> Tensor:
        """Return the number of the key of each token: positions [1|B, L, P] -> [1|B, L]."""
        return positions[..., self.column].long()


class SequenceHead(nn.Module):
    """Interface of a head with one output for a whole sequence, such as a classifier.

    `forward` takes the output of the last layer [B, L, D] and the mask [B, L], false at padding.

    Attributes:
        pool: how the head reduces a sequence to a vector. With `class_token`, the model adds a
            learned token before the sequence (Devlin et al. 2019). The head defines other values.
    """

    pool: str


def build_head(build: Callable[..., SequenceHead] | None, dim: int, num_outputs: int | None) -> Any:
    """Return the head that `build` returns, or without it a linear layer: [..., D] -> [..., V]."""
    assert num_outputs is not None
    with parameter_of("head"):
        return nn.Linear(dim, num_outputs) if build is None else build(dim, num_outputs)


def build_class_token(head: Any, dim: int, causal: bool) -> nn.Parameter | None:
    """Return the learned class token [D] if the head reads one, else None.

    Raises:
        ParameterError: the model is causal: the token would see no later one.
    """
    if not isinstance(head, SequenceHead) or head.pool != "class_token":
        return None
    if causal:
        expected = "expected last or mean with causal=true, as it sees no later token"
        raise ParameterError("head.pool", "class_token", expected)
    return nn.Parameter(torch.zeros(dim))


def draw_weights(model: nn.Module, std: float) -> None:
    """Initialise the weights of linear layers and embeddings at random, and biases as zero."""
    check_float("init_std", std)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
