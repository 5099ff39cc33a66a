"""Muon for the matrices of the layers, AdamW for all other parameters, in one optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from musicgen.models import Transformer
from musicgen.models.layer import Layer
from musicgen.validation import check_float


class MuonAdamW(Optimizer):
    """Muon (Jordan et al. 2024) beside AdamW.

    Muon orthogonalises the momentum of a matrix. One optimizer with two groups, so that a
    schedule, clipping and checkpoints treat it as any other.

    Args:
        model: the weights of the linear maps in its layers are Muon's; each map in a fused one
            (queries, keys, values) is orthogonalised apart.
        lr: of the matrices, times sqrt(max(1, rows / columns)).
        weight_decay: of the matrices, per unit of `lr`; all others have none.
        adamw_lr, betas: of all others. A schedule scales both rates by the same factor.
    """

    def __init__(
        self,
        model: Transformer,
        *,
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        adamw_lr: float = 2e-3,
        betas: Sequence[float] = (0.9, 0.95),
    ) -> None:
        check_float("lr", lr, above=0)
        parts = dict(linear_maps(model))
        others = [p for p in model.parameters() if p not in parts]
        self._num_maps = list(parts.values())
        matrices = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        rest: dict[str, Any] = {"lr": adamw_lr, "betas": tuple(betas), "weight_decay": 0.0}
        self._adamw = AdamW(others, **rest)
        super().__init__(
            [
                {"params": list(parts), "name": "matrices", **matrices},
                {**self._adamw.param_groups[0], "name": "others"},
            ],
            {"lr": lr},
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step; `closure` computes loss and gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        matrices, others = self.param_groups
        lr, decay = matrices["lr"], matrices["weight_decay"]
        # Also where one rate is set for both.
        others["lr"] = self._adamw.defaults["lr"] * (lr / self.defaults["lr"])
        for matrix, number in zip(matrices["params"], self._num_maps, strict=True):
            if matrix.grad is not None:
                state = self.state[matrix]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(matrix.grad)
                tensors = (matrix, matrix.grad, state["momentum_buffer"])
                chunks = zip(*(tensor.chunk(number) for tensor in tensors), strict=True)
                for weight, gradient, average in chunks:
                    average.lerp_(gradient, 1 - matrices["momentum"])
                    update = orthogonalize(gradient.lerp(average, matrices["momentum"]))  # Nesterov
                    rows, columns = weight.shape
                    weight.mul_(1 - lr * decay)
                    weight.add_(update, alpha=-lr * max(1, rows / columns) ** 0.5)
        # Loading a checkpoint replaces both.
        self._adamw.param_groups, self._adamw.state = [others], self.state
        self._adamw.step()
        return loss


def orthogonalize(matrix: Tensor) -> Tensor:
    """Compute nearly U Vᵀ of the singular value decomposition U S Vᵀ.

    Five Newton–Schulz iterations (Jordan et al. 2024) bring singular values that are not tiny to .7
    to 1.2: in bfloat16 on a GPU, elsewhere in the matrix's own precision, as most CPUs multiply
    bfloat16 more slowly than float32.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix.bfloat16() if matrix.is_cuda else matrix
    if tall := x.shape[0] > x.shape[1]:
        x = x.T
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


def linear_maps(model: Transformer) -> Iterator[tuple[Tensor, int]]:
    """Yield the weight of each linear map in the layers, and how many maps are fused in it."""
    for layer in model.layers:
        for name, module in layer.named_modules():
            if isinstance(module, nn.Linear):
                yield module.weight, Layer.NUM_FUSED.get(name, 1)
