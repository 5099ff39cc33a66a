"""Training objectives: the loss of a model on a batch."""

import math
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import functional as F

from musicgen.batches import IGNORED, Batch
from musicgen.models import Transformer


class Task:
    """An objective: the cross-entropy of targets under a model's logits.

    Attributes:
        causal: whether a model for it must be causal; None: it may be.
        means: names of the sums of `evaluate`.
    """

    causal: ClassVar[bool | None] = None
    means: ClassVar[tuple[str, ...]] = ()

    def loss(self, model: Transformer, batch: Batch, noise: Any) -> Tensor:
        """Compute the mean cross-entropy in nats per target. []"""
        return _nats(model, batch, noise, "mean")

    def evaluate(
        self, model: Transformer, batch: Batch, noise: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the nats of each target, 0 for `IGNORED` ones, and sums to log as means."""
        return _nats(model, batch, noise, "none"), {}

    def measures(self, loss: float) -> dict[str, float]:
        """Return further values to log, computed from the mean loss in nats per target."""
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
        # fp64 cannot hold e^700; the loss itself is logged in any case.
        return {"perplexity": math.exp(min(loss, 700))} if self.perplexity else {}


def _nats(model: Transformer, batch: Batch, noise: Any, reduction: str) -> Tensor:
    """Return the cross-entropy; with a copy head its gradient also trains the model's own loss."""
    if model.copy_head is None:
        return cross_entropy(logits_of(model, batch, noise), batch.targets, reduction)
    ignored = batch.targets == IGNORED
    log_p = logits_of(model, batch, noise, targets=batch.targets.masked_fill(ignored, 0))
    mixture_loss, model_loss = -log_p.masked_fill(ignored, 0)
    if reduction == "none":
        return mixture_loss
    # Where the copy head predicts well, the rest of the model would learn little from the mixture,
    # so it is trained on the loss of its own distribution as well.
    return (mixture_loss + model_loss - model_loss.detach()).sum() / batch.num_targets


def logits_of(
    model: Transformer, batch: Batch, noise: Any, targets: Tensor | None = None
) -> Tensor:
    """Return a model's output for a batch, in fp32; `targets` are those of its `forward`."""
    inputs = {"positions": batch.positions, "key_mask": batch.key_mask, "noise": noise}
    return model(batch.tokens, targets=targets, **inputs).float()


def cross_entropy(logits: Tensor, targets: Tensor, reduction: str) -> Tensor:
    """Return the mean over all targets that are not `IGNORED`; with "none" the value of each, or 0.

    Logits [..., V] and targets [...] make a mean [] or losses [...], in nats.
    """
    losses = F.cross_entropy(
        logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction=reduction
    )
    return losses if reduction == "mean" else losses.view_as(targets)
