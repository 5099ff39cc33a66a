"""A training step with SPE's hand-accumulated gradients against gradients that autograd sums.

The steps of all sides are interleaved in one process with one thread, and their CPU time counts, so
that other work on the machine matters little. Peak memory is that of a process per side.

- sine plain: no custom function; autograd keeps and differentiates the whole length.
- sine blocks: no custom function; autograd differentiates block by block.
- sine returned: a custom product that returns the gradient of Ω, which autograd sums over layers.
- conv plain: autograd differentiates the products with the codes, and sums over layers.
"""

from __future__ import annotations

import json
import time
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
from musicgen.position.spe.sine_operators import blocks
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


class _SineSPE(SineSPE):
    """SineSPE with one of the products below."""

    def product(self, z: Tensor) -> Any:
        return partial(_expand, z=z)

    def arrays(self, positions: Tensor) -> tuple[Any, Any]:
        return self.sines(0).omega(positions)

    def forward(self, positions: Tensor, *, noise: NoiseKey, state: Any = None) -> Any:
        z = self.draw_noise(noise, 0, positions.device)
        product, arrays = self.product(z), self.arrays(self.by_head(self.read(positions)))
        gates = self.gates(noise, positions.device)
        return [_PlainCode(gate, product, *arrays) for gate in gates], None


def _expand(u: Tensor, omega: Tensor, z: Tensor) -> Tensor:
    """Multiply u [B, L, H, K], Ω [1, H, L, 2K', K] and z [H, 2K', K, R] to [B, L, H, R]."""
    wide = u.permute(2, 0, 1, 3)[..., None, :] * omega.transpose(0, 1)  # [H, B, L, 2K', K]
    out = wide.flatten(3).flatten(1, 2) @ z.flatten(1, 2)
    return out.unflatten(1, (len(u), -1)).permute(1, 2, 0, 3)


class _InBlocks(_SineSPE):
    def arrays(self, positions: Tensor) -> tuple[Any, Any]:
        q, k = super().arrays(positions)
        return q.split(128, dim=2), k.split(128, dim=2)

    def product(self, z: Tensor) -> Any:
        def by_blocks(u: Tensor, omega: list[Tensor]) -> Tensor:
            parts = zip(u.split(128, dim=1), omega, strict=True)
            return torch.cat([_expand(*part, z) for part in parts], dim=1)

        return by_blocks


class _Returned(_SineSPE):
    def product(self, z: Tensor) -> Any:
        return partial(_Product.apply, z)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, u: Tensor, omega: Tensor) -> Tensor:
        ctx.save_for_backward(z, u, omega)
        return torch.cat([_expand(u[:, p], omega[:, :, p], z) for p in blocks(u)], dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        z, u, omega = ctx.saved_tensors
        grad_u, grad_omega = torch.empty_like(u), torch.empty_like(omega)
        transposed = z.flatten(1, 2).transpose(1, 2)
        for p in blocks(u):
            wide = grad[:, p].permute(2, 0, 1, 3).flatten(1, 2) @ transposed
            wide = wide.view(z.shape[0], len(u), -1, *z.shape[1:3])  # [H, B, T, 2K', K]
            by_omega = wide * u[:, p].permute(2, 0, 1, 3)[..., None, :]
            grad_omega[:, :, p] = by_omega.sum(1)[None] if len(u) > 1 else by_omega.transpose(0, 1)
            by_u = (wide * omega[:, :, p].transpose(0, 1)).sum(-2)
            grad_u[:, p] = by_u.permute(1, 2, 0, 3)
        return None, grad_u, grad_omega


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
    "sine plain": _SineSPE,
    "sine blocks": _InBlocks,
    "sine returned": _Returned,
    "conv": ConvSPE,
    "conv plain": _PlainConvSPE,
}


def build(side: str, layers: int) -> Transformer:
    """The published model with this side's encoding, in training mode."""
    torch.manual_seed(0)
    attention = partial(LinearAttention, feature_map=partial(FAVOR, num_features=128))
    sizes = {"dim": 512, "num_layers": layers, "num_heads": 8, "ff_dim": 2048}
    return Transformer(333, **sizes, position=SIDES[side], attention=attention, dropout=0.0)


def _step_from_zero(model: Transformer, tokens: Tensor) -> None:
    model.zero_grad()
    step(model, tokens, 0)


def main() -> None:
    args = measure.arguments(__doc__, layers=6, memory_layers=24, length=2048, batch=1, rounds=4)
    torch.set_num_threads(1)
    tokens = torch.randint(333, (args.batch, args.length))
    if args.side:
        step(build(args.side, args.memory_layers), tokens, 0)
        print(json.dumps({"gigabytes": measure.peak_gigabytes()}))
        return
    memory = measure.memory(__file__, SIDES, args)
    models = {side: build(side, args.layers) for side in SIDES}
    for model in models.values():
        step(model, tokens, 0)
    for name in ("sine", "conv"):  # every side has the same gradients
        expected = [p.grad for p in models[name].parameters()]
        for side in SIDES:
            if side.startswith(f"{name} "):
                for found, grad in zip(models[side].parameters(), expected, strict=True):
                    torch.testing.assert_close(found.grad, grad, rtol=1e-2, atol=1e-5)
    runs = {side: partial(_step_from_zero, model, tokens) for side, model in models.items()}
    times = measure.interleaved(runs, args.rounds, clock=time.process_time)
    sides = [(side, side.split()[0]) for side in SIDES if " " in side]
    rows = [
        measure.compare(f"{a} / {b}, {args.layers} layers", times[a], times[b], "CPU s a step", "—")
        for a, b in sides
    ]
    rows += [
        measure.row(f"{a} / {b}, {args.memory_layers} layers", memory[a], memory[b], "GB", "—")
        for a, b in sides
    ]
    measure.save_results(__file__, rows, args)


if __name__ == "__main__":
    main()
