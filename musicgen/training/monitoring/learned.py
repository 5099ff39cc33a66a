"""What positional encodings and attentions learn beside their weights: gates and decays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import FSDPStrategy, ModelParallelStrategy

from musicgen.attention import LinearAttention
from musicgen.models import Transformer
from musicgen.position import SPE


class LogLearned(pl.Callback):
    """Log the gates of SPE and the decays of linear attention, see `learned_values`.

    Spans are logged by `UpdateSpanWindow`. Weights that are spread over devices are left out.

    Args:
        every: steps between logged values.
    """

    def __init__(self, every: int) -> None:
        self.every = every

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any
    ) -> None:
        if trainer.global_step % self.every == 0 and not shards_weights(trainer):
            model = pl_module.model
            assert isinstance(model, Transformer)
            for name, value in learned_values(model):
                pl_module.log(name, value, rank_zero_only=True)


@torch.no_grad()
def learned_values(model: Transformer) -> Iterator[tuple[str, float]]:
    """Yield each layer's learned values by name.

    `gate/layerN` is the mean over heads and dimensions of δ, the constant's share in SPE's kernel
    (Liutkus et al. 2021, eqs. 23–25). `decay/layerN` is the mean over heads of the rate −log γ per
    token; of a decay by token, of its factor exp(ρ).
    """
    if isinstance(model.position, SPE) and model.position.gate is not None:
        for layer, gate in enumerate(model.position.gate):
            yield f"gate/layer{layer}", float(gate.sigmoid().mean())
    attentions = [module for module in model.modules() if isinstance(module, LinearAttention)]
    for layer, attention in enumerate(attentions):
        if attention.decay is not None:
            yield f"decay/layer{layer}", float(attention.decay.exp().mean())


def shards_weights(trainer: pl.Trainer) -> bool:
    """Return whether no process holds the whole model."""
    return isinstance(trainer.strategy, FSDPStrategy | ModelParallelStrategy)
