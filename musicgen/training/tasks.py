"""Training objectives: loss of a model on a batch."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from musicgen.data.loading.batch import IGNORED, Batch
from musicgen.models import Transformer
from musicgen.random import NoiseKey


class LanguageModeling:
    """Predict the next token."""

    def loss(self, model: Transformer, batch: Batch, noise: NoiseKey | None) -> Tensor:
        """Compute the mean cross-entropy in nats per token. []"""
        return self._cross_entropy(model, batch, noise, "mean")

    def token_losses(self, model: Transformer, batch: Batch, noise: NoiseKey | None) -> Tensor:
        """Compute the cross-entropy in nats of each target, 0 without one. [B, L]"""
        return self._cross_entropy(model, batch, noise, "none").view_as(batch.targets)

    def _cross_entropy(
        self, model: Transformer, batch: Batch, noise: NoiseKey | None, reduction: str
    ) -> Tensor:
        logits = model(batch.tokens, positions=batch.positions, noise=noise)
        return F.cross_entropy(
            logits.flatten(0, 1).float(),
            batch.targets.flatten(),
            ignore_index=IGNORED,
            reduction=reduction,
        )
