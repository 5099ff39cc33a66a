"""Build optimizers with parameter groups: Adam, AdamW, and Muon with AdamW."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.optim import Adam, AdamW, Optimizer

from musicgen.errors import ParameterError, UserError
from musicgen.models import Transformer
from musicgen.models.layer import Layer
from musicgen.validation import check_float, check_pattern

# Devices on which the matrices of one shape are orthogonalised together, in a fraction of the
# kernels. On a CPU, whose caches hold one matrix, a stack takes 1.15 times the time.
_STACKING = {"cuda"}


def parameter_groups(
    model: nn.Module, lr: float, *, weight_decay: float = 0.0, train: str | None = None
) -> list[dict[str, Any]]:
    """Return the parameters that train, by learning rate; the first group has `lr` itself.

    A module's `lr_factors` multiply the rate of its parameters of these names, and divide their
    weight decay, which is per unit of the rate.

    Args:
        train: a regular expression: parameters whose name it matches from the beginning train, and
            all others are frozen. None: all train.

    Raises:
        ParameterError: `train` matches no name, or is no regular expression.
    """
    if train is not None:
        check_pattern("train", train)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(re.match(train, name) is not None)
        if not any(parameter.requires_grad for parameter in model.parameters()):
            some = ", ".join(sorted({name.split(".")[0] for name, _ in model.named_parameters()}))
            expected = f"it matches no parameter's name; they begin with {some}"
            raise ParameterError("train", train, expected)
    factors = {
        getattr(module, name): factor
        for module in model.modules()
        for name, factor in getattr(module, "lr_factors", {}).items()
    }
    by_factor: dict[float, list[nn.Parameter]] = {1.0: []}
    for parameter in model.parameters():
        if parameter.requires_grad:
            by_factor.setdefault(factors.get(parameter, 1.0), []).append(parameter)
    return [
        {"params": parameters, "lr": lr * factor, "weight_decay": weight_decay / factor}
        for factor, parameters in by_factor.items()
    ]


def adam(model: nn.Module, *, lr: float, train: str | None = None, **settings: Any) -> Adam:
    """Build torch's Adam; further settings are passed on."""
    return _build(Adam, parameter_groups(model, lr, train=train), lr=lr, **settings)


def adamw(
    model: nn.Module, *, lr: float, weight_decay: float, train: str | None = None, **settings: Any
) -> Adam:
    """Build torch's AdamW; further settings are passed on."""
    groups = parameter_groups(model, lr, weight_decay=weight_decay, train=train)
    return _build(AdamW, groups, lr=lr, weight_decay=weight_decay, **settings)


def _build(kind: type[Adam], groups: list[dict[str, Any]], **settings: Any) -> Adam:
    """Build one of torch's optimizers; raise `UserError` for settings that it refuses."""
    for name in ("lr", "weight_decay", "eps"):
        if name in settings:
            check_float(name, settings[name], above=0 if name == "lr" else None)
    betas = settings["betas"] = tuple(settings.get("betas", (0.9, 0.999)))
    if len(betas) != 2:
        raise ParameterError("betas", list(betas), "expected two numbers, such as [0.9,0.95]")
    for beta in betas:
        check_float("betas", beta, below=1)
    try:
        optimizer = kind(groups, **settings)
    except (TypeError, ValueError) as error:
        raise UserError(f"optimizer: {error}") from None
    for group in optimizer.param_groups:
        # One kernel for all parameters. Not in the constructor, whose `fused` also takes over the
        # scaling of fp16 gradients: Lightning then refuses to clip them.
        group["fused"] = all(parameter.is_cuda for parameter in group["params"]) or None
    return optimizer


def is_fused(optimizer: Optimizer) -> bool:
    """Return whether one kernel updates all parameters, which can skip the update itself."""
    return all(group.get("fused") for group in optimizer.param_groups)


class MuonAdamW(Optimizer):
    """Muon (Jordan et al. 2024) for the matrices of the layers, AdamW for all other parameters.

    Muon orthogonalises the momentum of a matrix, each of several processes (DDP) a share of the
    matrices. One optimizer, so that a schedule, clipping and checkpoints treat it as any other.
    `torch.optim.Muon` multiplies in bfloat16 on CPUs as well: a step takes 1.7 to 2.0 times as long
    there, and updates differ by 1.3% from double precision instead of 1.4e-6
    (benchmarks/results/muon.json).

    Args:
        model: the weights of the linear maps in its layers are Muon's; each map in a fused one
            (queries, keys, values) is orthogonalised apart.
        lr: of the matrices, times sqrt(max(1, rows / columns)).
        weight_decay: of the matrices, per unit of `lr`; all others have none.
        adamw_lr, betas: of all others. A schedule scales both rates by the same factor.
        train: see `parameter_groups`.
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
        train: str | None = None,
    ) -> None:
        check_float("lr", lr, above=0)
        check_float("momentum", momentum, below=1)
        check_float("weight_decay", weight_decay)
        check_float("adamw_lr", adamw_lr, above=0)
        groups = parameter_groups(model, adamw_lr, train=train)
        maps = {  # of each weight, how many maps are fused in it
            module.weight: Layer.NUM_FUSED.get(name, 1)
            for layer in model.layers
            for name, module in layer.named_modules()
            if isinstance(module, nn.Linear)
        }
        matrices = [p for p in groups[0]["params"] if p in maps]
        groups[0]["params"] = [p for p in groups[0]["params"] if p not in maps]
        self._num_maps = [maps[p] for p in matrices]
        self._adamw = _build(AdamW, groups, lr=adamw_lr, betas=betas, weight_decay=0.0)
        others = [
            {**group, "name": f"others{i or ''}"}
            for i, group in enumerate(self._adamw.param_groups)
        ]
        matrix_settings = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(
            [{"params": matrices, "name": "matrices", **matrix_settings}, *others], {"lr": lr}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step; `closure` computes loss and gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        matrices, *others = self.param_groups
        lr, decay = matrices["lr"], matrices["weight_decay"]
        by_shape: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = {}
        for matrix, number in zip(matrices["params"], self._num_maps, strict=True):
            if matrix.grad is not None:
                state = self.state[matrix]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(matrix.grad)
                tensors = (matrix, matrix.grad, state["momentum_buffer"])
                chunks = zip(*(tensor.chunk(number) for tensor in tensors), strict=True)
                for weight, gradient, average in chunks:
                    average.lerp_(gradient, 1 - matrices["momentum"])
                    update = gradient.lerp(average, matrices["momentum"])  # Nesterov
                    by_shape.setdefault((*weight.shape,), []).append((weight, update))
        for (rows, columns), pairs in by_shape.items():
            weights, updates = zip(*pairs, strict=True)
            for weight, update in zip(weights, orthogonalize_all(updates), strict=True):
                weight.mul_(1 - lr * decay)
                weight.add_(update, alpha=-lr * max(1, rows / columns) ** 0.5)
        # Loading a checkpoint replaces both.
        self._adamw.param_groups, self._adamw.state = others, self.state
        self._adamw.step()
        return loss


def orthogonalize_all(matrices: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return matrices of one shape, the same in all processes, orthogonalised.

    Each of several processes computes its share of them, and receives the others'. The last matrix
    fills up the shares, which have one size.
    """
    rank, number = 0, 1
    if distributed.is_initialized():
        rank, number = distributed.get_rank(), distributed.get_world_size()
    size, last = -(-len(matrices) // number), len(matrices) - 1
    own = [matrices[min(i, last)] for i in range(rank * size, (rank + 1) * size)]
    if own[0].device.type in _STACKING:
        share = orthogonalize(torch.stack(own)).unbind()
    else:
        share = tuple(map(orthogonalize, own))
    if number == 1:
        return share
    stacked = torch.stack(share)
    shares = [torch.empty_like(stacked) for _ in range(number)]
    distributed.all_gather(shares, stacked)
    return torch.cat(shares).unbind()[: len(matrices)]


def orthogonalize(matrices: Tensor) -> Tensor:
    """Approximate U Vᵀ of the singular value decomposition U S Vᵀ of matrices [R, C] or [N, R, C].

    Five Newton–Schulz iterations (Jordan et al. 2024) bring singular values that are not tiny to .7
    to 1.2: in bfloat16 on a GPU, elsewhere in the matrix's own precision, as most CPUs multiply
    bfloat16 more slowly than float32.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    add_product = torch.addmm if x.dim() == 2 else torch.baddbmm
    if tall := x.shape[-2] > x.shape[-1]:
        x = x.mT
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = add_product(x, add_product(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
