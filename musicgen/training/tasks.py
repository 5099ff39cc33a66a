"""What a model is trained to do: a batch and a model to a loss."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from musicgen.data.batch import IGNORED, Batch
from musicgen.models import Transformer
from musicgen.position import NoiseKey


class LanguageModeling:
    """Predict the next token."""

    def loss(self, model: Transformer, batch: Batch, noise: NoiseKey | None) -> Tensor:
        """Mean cross-entropy in nats a token. []"""
        logits = model(batch.tokens, positions=batch.positions, noise=noise)
        return F.cross_entropy(
            logits.flatten(0, 1).float(), batch.targets.flatten(), ignore_index=IGNORED
        )
