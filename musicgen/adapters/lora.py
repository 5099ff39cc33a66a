"""Low-rank adaptation of linear layers (Hu et al. 2022)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from musicgen.adapters.base import Adapter
from musicgen.errors import ParameterError
from musicgen.models import Transformer
from musicgen.validation import check_int


class LowRank(nn.Module):
    """W + (alpha / rank) · B A, with B 0 at first: a parametrization of a weight [out, in]."""

    def __init__(self, weight: Tensor, rank: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.down = nn.Parameter(weight.new_empty(rank, weight.shape[1]))  # A
        self.up = nn.Parameter(weight.new_zeros(weight.shape[0], rank))  # B
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.scale * (self.up @ self.down)


class LoRA(Adapter):
    """Learn W + (alpha / rank) · B A instead of linear layers' W.

    Generation adds the product to W, so that it costs no time.

    Args:
        rank: inner width of B A; the projections to q, k and v share one.
        targets: names of linear layers in each Transformer layer.
    """

    name = "lora"
    marker = ".parametrizations.weight.0."

    def __init__(
        self,
        rank: int = 8,
        alpha: float = 16.0,
        targets: Sequence[str] = ("qkv", "out", "ff_in", "ff_out"),
    ) -> None:
        check_int("rank", rank)
        self.rank, self.alpha, self.targets = rank, alpha, list(targets)

    def attach(self, model: Transformer) -> None:
        model.requires_grad_(False)
        for module in self._modules(model):
            low_rank = LowRank(module.weight, self.rank, self.alpha / self.rank)
            parametrize.register_parametrization(module, "weight", low_rank)

    def finish(self, model: Transformer) -> None:
        """Add the products to the weights."""
        for module in self._modules(model):
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)

    def merge(self, settings: dict[str, Any]) -> dict[str, Any]:
        return settings

    def changed(self, own: Iterable[str]) -> list[str]:
        return sorted({name.partition(self.marker)[0] + ".weight" for name in own})

    def base(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        original = ".parametrizations.weight.original"
        kept = super().base(weights)
        return {name.replace(original, ".weight"): tensor for name, tensor in kept.items()}

    def _modules(self, model: Transformer) -> Iterator[nn.Linear]:
        for layer in model.layers:
            linear = {n: m for n, m in layer.named_children() if isinstance(m, nn.Linear)}
            if not linear.keys() >= set(self.targets):
                expected = f"expected a list of some of {', '.join(linear)}"
                raise ParameterError("targets", f"[{','.join(self.targets)}]", expected)
            yield from (linear[name] for name in self.targets)
