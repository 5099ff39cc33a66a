"""Classifiers of whole sequences."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from musicgen.validation import check_choice


class ClassificationHead(nn.Module):
    """Pool a sequence, or several that make one example, and classify it with a small network.

    Args:
        dim: model width D.
        num_outputs: classes C.
        pool: the vector that stands for a sequence: that of a learned token before it, which the
            model adds (Devlin et al. 2019); of its first or last token; or the mean of its tokens.
        hidden: widths of the hidden layers, with ReLU; none: a linear classifier.
        num_towers: sequences of an example. They are rows of one batch, all first ones first.
        interaction: how the vectors of two towers are combined: [a, b], or [a, b, a ⊙ b, a − b]
            (Mou et al. 2016).
    """

    def __init__(
        self,
        dim: int,
        num_outputs: int,
        *,
        pool: str = "mean",
        hidden: Sequence[int] = (),
        num_towers: int = 1,
        interaction: str = "concatenate",
    ) -> None:
        super().__init__()
        check_choice("pool", pool, ("class_token", "first", "last", "mean"))
        check_choice("interaction", interaction, ("concatenate", "nli"))
        self.pool, self.num_towers, self.interaction = pool, num_towers, interaction
        width = dim * (4 if interaction == "nli" else num_towers)
        layers: list[nn.Module] = []
        for size in hidden:
            layers += [nn.Linear(width, size), nn.ReLU()]
            width = size
        self.layers = nn.Sequential(*layers, nn.Linear(width, num_outputs))

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Return class logits: [B, L, D], and [B, L] false at padding -> [B / num_towers, C]."""
        pooled = self._pooled(x, key_mask)
        if self.num_towers > 1:
            towers = pooled.unflatten(0, (self.num_towers, -1)).unbind()
            if self.interaction == "nli":
                a, b = towers
                towers = (a, b, a * b, a - b)
            pooled = torch.cat(towers, dim=-1)
        return self.layers(pooled)

    def _pooled(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        if self.pool in ("class_token", "first"):
            return x[:, 0]
        if key_mask is None:
            return x[:, -1] if self.pool == "last" else x.mean(1)
        if self.pool == "mean":
            return (x * key_mask[..., None]).sum(1) / key_mask.sum(1, keepdim=True)
        last = key_mask.shape[1] - 1 - key_mask.flip(1).int().argmax(1)
        return x[torch.arange(len(x), device=x.device), last]
