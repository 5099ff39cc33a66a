"""Products with Ω(n) = [λ cos(2πfn + θ), λ sin(2πfn + θ)], never kept for more than a block.

SineSPE's codes are Ω times noise. What is as wide as Ω is made per block of positions, forward and
backward; Ω itself and its gradient exist once for all layers. On a GPU a block is the whole length,
and what passes over the width of Ω is compiled into one kernel each way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from musicgen.position.base import product_dtype
from musicgen.position.fused import Fused


class Unplaced(NamedTuple):
    """Tokens that have no place, and the Ω that is theirs instead."""

    placed: Tensor  # [1|B, L]: which have one
    omega: Tensor  # [H, 2K', K]


class Sines(NamedTuple):
    """What a code is made of."""

    frequency: Tensor  # [P, H, K, K'] in cycles per position, within ±½
    phase: Tensor  # [H, K, K'], of queries alone
    gain: Tensor  # [H, K, K']: λ

    def waves(self, positions: Tensor, unplaced: Unplaced | None = None) -> tuple[Tensor, Tensor]:
        """Ω for queries (with the phase) and keys (without): [1|B, L, P] -> [1|B, H, L, 2K', K]."""
        f, theta, gain = (p.transpose(-2, -1)[..., None, :, :] for p in self)  # [.., H, 1, K', K]
        n = _coordinates(positions)
        with torch.autocast(positions.device.type, enabled=False):
            angle = (2 * math.pi) * n[0] * f[0]
            for n_p, f_p in zip(n[1:], f[1:], strict=True):
                angle = torch.addcmul(angle, (2 * math.pi) * n_p, f_p)
            q, k = (
                torch.cat((gain * a.cos(), gain * a.sin()), dim=-2) for a in (angle + theta, angle)
            )
        if unplaced is None:
            return q, k
        placed, omega = unplaced.placed[:, None, :, None, None], unplaced.omega[:, None]
        return torch.where(placed, q, omega), torch.where(placed, k, omega)


def _coordinates(positions: Tensor) -> Tensor:
    """[1|B, L, P] -> [P, 1|B, 1, L, 1, 1], in fp32."""
    return positions.float().movedim(-1, 0)[:, :, None, :, None, None]


@dataclass
class Waves:
    """Ω for queries (with the phase) and keys (without), once for all layers.

    [1|B, H, L, 2K', K] each, in the type of products; and their gradients, fp32, into which each
    layer adds.
    """

    q: Tensor
    k: Tensor
    grad_q: Tensor
    grad_k: Tensor

    @staticmethod
    def of(
        positions: Tensor, sines: Sines, unplaced: Unplaced | None = None
    ) -> tuple[Waves, Tensor]:
        """The waves at positions [1|B, L, P], and a token.

        The token stands for them in the graph: a layer's backward gives it nothing but the order
        of execution, so that no array of Ω's size is passed from layer to layer. It is kept
        apart, since its graph holds the waves: a cycle would keep them until the next collection.
        """
        with torch.no_grad():
            q, k = (w.to(product_dtype(w.device)) for w in sines.waves(positions, unplaced))
        empty = q.new_empty(0)
        waves = Waves(q, k, empty, empty)
        if torch.is_grad_enabled() and sines.frequency.requires_grad:
            waves.grad_q, waves.grad_k = (torch.zeros_like(w, dtype=torch.float32) for w in (q, k))
        f, theta, gain = (p.transpose(-2, -1) for p in sines)  # [.., H, K', K]
        placed, omega = unplaced or (None, None)
        n = _coordinates(positions)
        return waves, _Collect.apply(f, theta, gain, omega, n, placed, waves)


class _Collect(torch.autograd.Function):
    """Behind all layers: from the summed gradients of Ω to those of the sines.

    It counts on a backward that reaches it: after one for other tensors alone
    (`torch.autograd.grad(loss, q)`) their sum would count again in the next.
    """

    @staticmethod
    def forward(
        ctx: Any,
        f: Tensor,
        theta: Tensor,
        gain: Tensor,
        omega: Tensor | None,
        n: Tensor,
        placed: Tensor | None,
        waves: Waves,
    ) -> Tensor:
        ctx.save_for_backward(gain, n, placed)
        ctx.waves = waves
        return f.new_zeros(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        gain, n, placed = ctx.saved_tensors
        waves = ctx.waves
        grad_omega = None
        if placed is not None:
            placed = placed[:, None, :, None, None]
            if ctx.needs_input_grad[3]:
                grad_omega = ((waves.grad_q + waves.grad_k) * ~placed).sum((0, 2))
            waves.grad_q *= placed
            waves.grad_k *= placed

        def turned(omega: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
            """Gradients of the angle, [.., L, K', K], and of the gain, summed: [H, K', K]."""
            (cos, sin), (grad_cos, grad_sin) = omega.chunk(2, -2), grad.chunk(2, -2)
            in_gain = (grad_cos * cos).sum((0, 2)) + (grad_sin * sin).sum((0, 2))
            return grad_sin * cos - grad_cos * sin, in_gain / gain

        angle_q, gain_q = turned(waves.q, waves.grad_q)
        angle_k, gain_k = turned(waves.k, waves.grad_k)
        grad_theta = angle_q.sum((0, 2))
        angles = angle_q + angle_k
        grad_f = (2 * math.pi) * torch.stack([(angles * n_p).sum((0, 2)) for n_p in n])
        waves.grad_q.zero_()
        waves.grad_k.zero_()
        return grad_f, grad_theta, gain_q + gain_k, grad_omega, *(None,) * 3


@Fused
def widen(x: Tensor, position: Tensor | None, waves: Tensor) -> Tensor:
    """vec(x_d a_d Ω_d): waves [H, 1|B, T, 2K', K] -> [H, B·T, 2K'·K]."""
    u = x if position is None else x * position[:, None, None]
    return (u[..., None, :] * waves).flatten(3).flatten(1, 2)


@Fused
def narrow(
    x: Tensor, position: Tensor | None, waves: Tensor, grad: Tensor, grad_waves: Tensor | None
) -> Tensor:
    """From a gradient [H, B·T, 2K'·K] to that of x a, [H, B, T, K]; that of Ω is added in place."""
    grad = grad.view(*x.shape[:3], *waves.shape[3:])
    if grad_waves is not None:
        u = x if position is None else x * position[:, None, None]
        if grad_waves.shape[1] == x.shape[1]:
            grad_waves.addcmul_(grad, u[..., None, :])
        else:
            grad_waves += (grad * u[..., None, :]).sum(1, keepdim=True)
    return (grad * waves).sum(-2)


class Project(torch.autograd.Function):
    """x̂ = vec(x_d a_d Ω_d(n)) z + (x c) ε, by blocks of positions.

    x [B, L, H, K]; a, c [H, K] or None for ones and nothing; z [H, 2K', K, R]; ε [H, K, R].
    Computed in Ω's type, in which x̂ is returned.

    Kept for the backward is x alone: the vector of width 2K'·K is made again, block by block,
    where a CPU's cache holds it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,  # [B, L, H, K]
        position: Tensor | None,
        constant: Tensor | None,
        token: Tensor,
        omega: Tensor,
        grad_omega: Tensor,
        z: Tensor,
        epsilon: Tensor | None,
    ) -> Tensor:
        ctx.x_dtype = x.dtype
        x, z = x.to(omega.dtype), z.to(omega.dtype)
        position, constant, epsilon = (
            None if p is None else p.to(omega.dtype) for p in (position, constant, epsilon)
        )
        ctx.save_for_backward(x, position, constant, omega, z, epsilon)
        ctx.grad_omega = grad_omega  # written to by every layer: not for autograd to watch
        batch, length, heads, _ = x.shape
        flat_z = z.flatten(1, 2)  # [H, 2K'·K, R]
        out = x.new_empty(batch, length, heads, z.shape[-1])
        with torch.autocast(x.device.type, enabled=False):
            for part in blocks(x):
                x_h = x[:, part].permute(2, 0, 1, 3)  # [H, B, T, K]
                y = widen(x_h, position, omega[:, :, part].transpose(0, 1)) @ flat_z
                if constant is not None and epsilon is not None:
                    y = y.baddbmm_((x_h * constant[:, None, None]).flatten(1, 2), epsilon)
                out[:, part] = y.unflatten(1, (batch, -1)).permute(1, 2, 0, 3)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, position, constant, omega, z, epsilon = ctx.saved_tensors
        grad_omega: Tensor = ctx.grad_omega
        batch = x.shape[0]
        flat_z = z.flatten(1, 2).transpose(1, 2)
        grad_x = torch.empty_like(x)
        grad_position, grad_constant = (
            None if p is None else torch.zeros_like(p, dtype=torch.float32)
            for p in (position, constant)
        )
        for part in blocks(x):
            x_h = x[:, part].permute(2, 0, 1, 3)
            g_h = grad[:, part].permute(2, 0, 1, 3).flatten(1, 2)  # [H, B·T, R]
            waves = omega[:, :, part].transpose(0, 1)
            into = grad_omega[:, :, part].transpose(0, 1) if grad_omega.numel() else None
            g_u = narrow(x_h, position, waves, g_h @ flat_z, into)
            g_x = g_u
            if epsilon is not None:
                g_c = (g_h @ epsilon.transpose(1, 2)).unflatten(1, (batch, -1))
                g_x = g_u * position[:, None, None] + g_c * constant[:, None, None]
                grad_position += (g_u * x_h).sum((1, 2))
                grad_constant += (g_c * x_h).sum((1, 2))
            grad_x[:, part] = g_x.permute(1, 2, 0, 3)
        token = grad_omega.new_zeros(1)
        return grad_x.to(ctx.x_dtype), grad_position, grad_constant, token, *(None,) * 4


def blocks(x: Tensor) -> list[slice]:
    """Runs of positions that are worked on together: what a cache holds, or all on a GPU."""
    length = x.shape[1]
    if length == 1:  # a decoding step, compiled once for any number of rows
        return [slice(0, 1)]
    size = max(16, 128 // x.shape[0]) if x.device.type == "cpu" else length
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]
