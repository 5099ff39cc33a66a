"""Heads of the model, which map the output of the last layer to logits."""

from collections.abc import Callable
from typing import Any

from torch import nn

from musicgen.errors import parameter_of


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
