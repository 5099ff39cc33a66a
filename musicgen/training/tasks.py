"""Training objectives: loss of a model on a batch."""

import math
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from musicgen.batches import IGNORED, Batch
from musicgen.models import Transformer
from musicgen.random import NoiseKey


class Task:
    """An objective: the cross-entropy of targets under a model's logits.

    Attributes:
        causal: whether a model for it must be causal; None: it may be.
        means: names of the sums of `evaluate`.
    """

    causal: ClassVar[bool | None] = None
    means: ClassVar[tuple[str, ...]] = ()

    def loss(self, model: Transformer, batch: Batch, noise: NoiseKey | None) -> Tensor:
        """Compute the mean cross-entropy in nats per target. []"""
        return _nats(model, batch, noise, "mean")

    def evaluate(
        self, model: Transformer, batch: Batch, noise: NoiseKey | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the nats of each target, 0 without one, and the sums whose means are logged."""
        return _nats(model, batch, noise, "none"), {}

    def measures(self, loss: float) -> dict[str, float]:
        """Return what else to log of the mean loss in nats per target."""
        return {}


class LanguageModeling(Task):
    """Predict the next token.

    Args:
        perplexity: log the perplexity of validation and test as well.
    """

    causal = True

    def __init__(self, perplexity: bool = False) -> None:
        self.perplexity = perplexity

    def measures(self, loss: float) -> dict[str, float]:
        # Beyond e^700, which fp64 does not hold, the loss says as much.
        return {"perplexity": math.exp(min(loss, 700))} if self.perplexity else {}


def _nats(model: Transformer, batch: Batch, noise: NoiseKey | None, reduction: str) -> Tensor:
    """Return the cross-entropy, whose gradient with a copy head is that of the model's own, too."""
    if model.copy_head is None:
        return cross_entropy(logits_of(model, batch, noise), batch.targets, reduction)
    ignored = batch.targets == IGNORED
    log_p = logits_of(model, batch, noise, targets=batch.targets.masked_fill(ignored, 0))
    nats, own = -log_p.masked_fill(ignored, 0)
    if reduction == "none":
        return nats
    # What can be copied would teach the rest of the model little: it learns its own loss as well.
    return (nats + own - own.detach()).sum() / batch.num_targets


def logits_of(
    model: Transformer, batch: Batch, noise: NoiseKey | None, targets: Tensor | None = None
) -> Tensor:
    """Return a model's output for a batch, in fp32; `targets` are those of its `forward`."""
    inputs = {"positions": batch.positions, "key_mask": batch.key_mask, "noise": noise}
    return model(batch.tokens, targets=targets, **inputs).float()


def cross_entropy(logits: Tensor, targets: Tensor, reduction: str) -> Tensor:
    """Return the mean over all targets that are not `IGNORED`, or with "none" that of each, or 0.

    Logits [..., V] and targets [...] make a mean [] or losses [...], in nats.
    """
    losses = F.cross_entropy(
        logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction=reduction
    )
    return losses if reduction == "mean" else losses.view_as(targets)
