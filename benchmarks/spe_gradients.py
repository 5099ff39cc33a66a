"""Compare a training step with SPE's hand-written gradients and one with autograd's.

The sides take turns in one process with one thread. CPU time is measured, because other programs
hardly change it. Peak memory is measured in one process for each side.

- sine plain: no custom function; autograd keeps and differentiates the whole length.
- conv plain: autograd differentiates the products with the codes, and sums over layers.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from benchmarks import measure
from benchmarks.training_step import step
from musicgen.attention import FAVOR, LinearAttention
from musicgen.models import Transformer
from musicgen.position import ConvSPE, LayerCode, PositionalEncoding, SineSPE
from musicgen.random import NoiseKey


class _PlainCode(LayerCode):
    """A layer's code whose arrays (Ω, or the codes) are ordinary tensors of the graph."""

    def __init__(self, gate: Any, product: Any, *arrays: Any) -> None:
        self.gate, self.product, self.arrays = gate, product, arrays

    def encode(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        encoded = []
        for x, array in zip((q, k), self.arrays, strict=True):
            out = self.product(x * self.gate.position, array)
            constant = torch.einsum("blhk,hkr->blhr", x * self.gate.constant, self.gate.epsilon)
            encoded.append(out + constant)
        return encoded[0], encoded[1]


class _PlainSineSPE(SineSPE):
    """SineSPE whose Ω is an ordinary tensor of the graph."""

    def forward(self, positions: Tensor, *, noise: NoiseKey, state: Any = None) -> Any:
        product = partial(_expand, z=self.draw_noise(noise, 0, positions.device))
        arrays = self.sines(0).omega(self.read(positions))
        gates = self.gates(noise, positions.device)
        return [_PlainCode(gate, product, *arrays) for gate in gates], None


def _expand(u: Tensor, omega: Tensor, z: Tensor) -> Tensor:
    """Multiply u [B, L, H, K], Ω [1, H, L, 2K', K] and z [H, 2K', K, R] to [B, L, H, R]."""
    wide = u.permute(2, 0, 1, 3)[..., None, :] * omega.transpose(0, 1)  # [H, B, L, 2K', K]
    out = wide.flatten(3).flatten(1, 2) @ z.flatten(1, 2)
    return out.unflatten(1, (len(u), -1)).permute(1, 2, 0, 3)


class _PlainConvSPE(ConvSPE):
    """ConvSPE whose codes are ordinary tensors of the graph."""

    def forward(self, positions: Tensor, *, noise: NoiseKey, state: Any = None) -> Any:
        length = positions.shape[1]
        drawn = self._noise(range(-(-length // 128)), 0, noise, positions.device)
        q, k = _Correlate.apply(self.filter_q[0], self.filter_k[0], drawn)
        gates = self.gates(noise, positions.device)
        arrays = q[:length], k[:length]
        return [_PlainCode(gate, _rows_times_codes, *arrays) for gate in gates], None


def _rows_times_codes(u: Tensor, code: Tensor) -> Tensor:
    return (u.permute(1, 2, 0, 3) @ code).permute(2, 0, 1, 3)


class _Correlate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, filter_q: Tensor, filter_k: Tensor, noise: Any) -> tuple[Tensor, Tensor]:
        ctx.noise = noise
        shape = noise.num_positions, len(filter_q), noise.width, noise.num_realizations
        q, k = torch.empty(shape), torch.empty(shape)
        for head in range(len(filter_q)):
            z = noise.draw(head)
            noise.correlate(z, filter_q[head], q[:, head])
            noise.correlate(z, filter_k[head], k[:, head])
        return q, k

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_q: Tensor, grad_k: Tensor) -> tuple[Tensor | None, ...]:
        noise, grads = ctx.noise, []
        for grad in (grad_q, grad_k):
            heads = range(grad.shape[1])
            by_head = [noise.taps_gradient(noise.draw(h), grad[:, h].__getitem__) for h in heads]
            grads.append(torch.stack(by_head))
        return grads[0], grads[1], None


SIDES: dict[str, type[PositionalEncoding]] = {
    "sine": SineSPE,
    "sine plain": _PlainSineSPE,
    "conv": ConvSPE,
    "conv plain": _PlainConvSPE,
}
PAIRS = (("sine plain", "sine"), ("conv plain", "conv"))


def build(side: str, layers: int) -> Transformer:
    """The published model with this side's encoding, in training mode."""
    torch.manual_seed(0)
    attention = partial(LinearAttention, feature_map=partial(FAVOR, num_features=128))
    sizes = {"dim": 512, "num_layers": layers, "num_heads": 8, "ff_dim": 2048}
    return Transformer(333, **sizes, position=SIDES[side], attention=attention, dropout=0.0)


def main() -> None:
    args = measure.arguments(__doc__, layers=6, memory_layers=24, length=2048, batch=1, rounds=4)
    torch.set_num_threads(1)
    tokens = torch.randint(333, (args.batch, args.length))

    def make_step(side: str) -> Callable[[], None]:
        model = build(side, args.memory_layers if args.side else args.layers)

        def run() -> None:
            model.zero_grad()
            step(model, tokens, 0)

        return run

    builders = {side: partial(make_step, side) for side in SIDES}
    times, memory = measure.steps(__file__, builders, args, measure.cpu_clock(args.device))
    rows = []
    for a, b in PAIRS:
        time, space = f"{a} / {b}, {args.layers} layers", f"{a} / {b}, {args.memory_layers} layers"
        rows.append(measure.compare(time, times[a], times[b], "CPU s a step", "—"))
        rows.append(measure.row(space, memory[a], memory[b], "GB", "—"))
    measure.save_results(__file__, rows, args)
    for pair in PAIRS:  # both sides have the same gradients
        models = [build(side, args.layers) for side in pair]
        for model in models:
            step(model, tokens, 0)
        for a, b in zip(*(model.parameters() for model in models), strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-2, atol=1e-5)


if __name__ == "__main__":
    main()
