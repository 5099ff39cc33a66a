"""Heads of the model, which turn the last layer's output into logits or classes."""

from collections.abc import Callable
from typing import Any

from torch import nn

from musicgen.errors import parameter_of


class SequenceHead(nn.Module):
    """Interface of a head that makes one output of a whole sequence, such as a classifier.

    Its `forward` takes the last layer's output [B, L, D] and the mask [B, L], false at padding.

    Attributes:
        pool: the vector that it reads. For `class_token` the model puts a learned token before the
            sequence (Devlin et al. 2019); other values are known to the head alone.
    """

    pool: str


def build_head(build: Callable[..., SequenceHead] | None, dim: int, num_outputs: int | None) -> Any:
    """Return the head: a linear map of each token, unless it is given."""
    assert num_outputs is not None
    with parameter_of("head"):
        return nn.Linear(dim, num_outputs) if build is None else build(dim, num_outputs)
