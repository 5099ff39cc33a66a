"""A small model for the tests of models."""

from typing import Any

import torch

from musicgen.attention import SoftmaxAttention
from musicgen.models import Transformer
from musicgen.position import NoPosition

VOCAB = 11
SIZES = {"dim": 12, "num_layers": 2, "num_heads": 3, "ff_dim": 16, "dropout": 0.0, "init_std": 0.3}


def small(position=NoPosition, attention=SoftmaxAttention, vocab_size=VOCAB, **settings: Any):
    """Build a model in evaluation mode, the same of the same settings."""
    torch.manual_seed(0)
    settings = SIZES | settings
    return Transformer(vocab_size, position=position, attention=attention, **settings).eval()


def random_tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(VOCAB, (rows, length), generator=torch.Generator().manual_seed(1))
