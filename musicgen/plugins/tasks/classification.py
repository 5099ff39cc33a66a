"""Classification of whole sequences: the model's head and the training objective."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from musicgen.batches import Batch
from musicgen.models import SequenceHead, Transformer
from musicgen.training.tasks import Task, cross_entropy, logits_of
from musicgen.validation import check_choice


class ClassificationHead(SequenceHead):
    """A head that reduces each sequence to one vector and classifies it with a small network.

    Args:
        dim: model width D.
        num_outputs: number of classes C.
        pool: the vector that represents a sequence: the vector of a learned token that the model
            adds before the sequence (`class_token`; Devlin et al. 2019), the vector of the `first`
            or `last` token, or the `mean` of all tokens.
        hidden: widths of the hidden layers, with ReLU; empty: a linear classifier.
        num_towers: number of sequences of an example, whose vectors are concatenated. In a batch
            the first sequences of all examples come first, then the second ones.
    """

    def __init__(
        self,
        dim: int,
        num_outputs: int,
        *,
        pool: str = "mean",
        hidden: Sequence[int] = (),
        num_towers: int = 1,
    ) -> None:
        super().__init__()
        check_choice("pool", pool, ("class_token", "first", "last", "mean"))
        self.pool, self.num_towers, width = pool, num_towers, num_towers * dim
        layers: list[nn.Module] = []
        for size in hidden:
            layers += [nn.Linear(width, size), nn.ReLU()]
            width = size
        self.layers = nn.Sequential(*layers, nn.Linear(width, num_outputs))

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Return class logits: [B, L, D], and [B, L] false at padding -> [B / num_towers, C]."""
        towers = self._pooled(x, key_mask).chunk(self.num_towers)
        return self.layers(torch.cat(towers, dim=-1))

    def _pooled(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        if self.pool in ("class_token", "first"):
            return x[:, 0]
        if key_mask is None:
            return x[:, -1] if self.pool == "last" else x.mean(1)
        if self.pool == "mean":
            return (x * key_mask[..., None]).sum(1) / key_mask.sum(1, keepdim=True)
        last = key_mask.shape[1] - 1 - key_mask.flip(1).int().argmax(1)
        return x[torch.arange(len(x), device=x.device), last]


class Classification(Task):
    """Predict the class of each example, from the logits of a `ClassificationHead`."""

    means = ("accuracy",)

    def evaluate(
        self, model: Transformer, batch: Batch, noise: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        logits = logits_of(model, batch, noise)
        correct = (logits.argmax(-1) == batch.targets).sum()
        return cross_entropy(logits, batch.targets, "none"), {"accuracy": correct}
