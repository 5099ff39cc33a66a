"""Compare Muon's steps with those of `torch.optim.Muon`, which multiplies in bfloat16 everywhere.

The matrices are those of a model's layers, at random: widths 128 (4 layers) and 512 (2 layers).
"""

import copy
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from benchmarks import measure
from musicgen.attention import FAVOR, LinearAttention
from musicgen.models import Transformer
from musicgen.models.layer import Layer
from musicgen.position import Sinusoidal
from musicgen.training.optimizers import MuonAdamW, orthogonalize

LR, MOMENTUM, DECAY = 0.02, 0.95, 0.1


def build(width: int, layers: int) -> Transformer:
    """Build a model with gradients at random."""
    torch.manual_seed(0)
    attention = partial(LinearAttention, feature_map=partial(FAVOR, num_features=64))
    sizes = {"dim": width, "num_layers": layers, "num_heads": 4, "ff_dim": 4 * width}
    model = Transformer(400, position=Sinusoidal, attention=attention, dropout=0.0, **sizes)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    return model


def torch_step(model: Transformer) -> Callable[[], None]:
    """Return a step of torch's two optimizers, with a parameter for each fused map."""
    maps, grads, owned = [], [], set()
    for layer in model.layers:
        for name, linear in layer.named_modules():
            if isinstance(linear, nn.Linear):
                number = Layer.NUM_FUSED.get(name, 1)
                maps += [nn.Parameter(each) for each in linear.weight.detach().chunk(number)]
                grads += linear.weight.grad.chunk(number)
                owned.add(linear.weight)
    for parameter, grad in zip(maps, grads, strict=True):
        parameter.grad = grad
    muon = torch.optim.Muon(maps, lr=LR, momentum=MOMENTUM, weight_decay=DECAY)
    others = [parameter for parameter in model.parameters() if parameter not in owned]
    adamw = torch.optim.AdamW(others, lr=2e-3, betas=(0.9, 0.95), weight_decay=0)

    def step() -> None:
        muon.step()
        adamw.step()

    return step


def difference(convert: Callable[[torch.Tensor], torch.Tensor]) -> float:
    """Return the relative difference of an orthogonalised matrix from double precision's."""
    matrix = torch.randn(512, 128, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    exact = orthogonalize(matrix)
    return float((orthogonalize(convert(matrix)).double() - exact).norm() / exact.norm())


def main() -> None:
    args = measure.arguments(__doc__, rounds=30)
    rows = []
    for width, layers in ((128, 4), (512, 2)):
        ours = build(width, layers)
        theirs = copy.deepcopy(ours)
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            other.grad = one.grad
        optimizer = MuonAdamW(ours, lr=LR, momentum=MOMENTUM, weight_decay=DECAY)
        runs = {"torch": torch_step(theirs), "ours": optimizer.step}
        times = measure.interleaved(runs, args.rounds, clock=time.process_time)
        what = f"torch / ours, width {width}, {layers} layers"
        rows.append(measure.compare(what, times["torch"], times["ours"], "s a step", "—"))
    errors = (difference(torch.Tensor.bfloat16), difference(torch.Tensor.float))
    unit = "relative difference of an update from double precision"
    rows.append(measure.row("torch / ours", *errors, unit, "—"))
    measure.save_results(__file__, rows)


if __name__ == "__main__":
    main()
