"""What positional encodings and attentions learn beside their weights: gates and decays."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import FSDPStrategy, ModelParallelStrategy

from musicgen.attention import LinearAttention
from musicgen.position import SPE


class LogLearned(pl.Callback):
    """Log each layer's gate of SPE and decay of linear attention every `every` steps.

    `gate/layerN` is the mean over heads and dimensions of δ, the constant's share in SPE's kernel
    (Liutkus et al. 2021, eqs. 23–25). `decay/layerN` is the mean over heads of the rate −log γ per
    token; of a decay by token, of its factor exp(ρ). Spans are logged by `UpdateSpanWindow`.
    Weights that are spread over devices are left out.
    """

    def __init__(self, every: int) -> None:
        self.every = every

    @torch.no_grad()
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any
    ) -> None:
        if trainer.global_step % self.every or shards_weights(trainer):
            return
        modules = list(pl_module.modules())
        gates = [m.gate for m in modules if isinstance(m, SPE) and m.gate is not None]
        values = {f"gate/layer{i}": g.sigmoid() for gate in gates for i, g in enumerate(gate)}
        decays = [m.decay for m in modules if isinstance(m, LinearAttention)]
        values |= {f"decay/layer{i}": d.exp() for i, d in enumerate(decays) if d is not None}
        for name, value in values.items():
            pl_module.log(name, float(value.mean()), rank_zero_only=True)


def shards_weights(trainer: pl.Trainer) -> bool:
    """Return whether no process holds the whole model."""
    return isinstance(trainer.strategy, FSDPStrategy | ModelParallelStrategy)
