"""Products with Ω(n) = [λ cos(2πfn + θ), λ sin(2πfn + θ)] by blocks of positions.

The codes of SineSPE are Ω times noise. Arrays with as many numbers per token as Ω are computed for
one block at a time, forward and backward. Ω itself and its gradient exist once for all layers. This
implementation is for CPUs; `batched.py` has the one for accelerators.

The gradient of Ω is summed over layers in place. `benchmarks/spe_gradients.py` measures what this
saves compared with sums by autograd.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from musicgen.position.base import product_dtype
from musicgen.position.spe.backward_pass import PassLocal
from musicgen.position.spe.base import Gate
from musicgen.position.spe.sines import Sines


class Omega:
    """Ω of queries and of keys, shared by all layers, and its gradients, summed over layers.

    Ω is [1|B, H, L, 2K', K] in the dtype of products; its gradients are fp32.
    """

    def __init__(self, positions: Tensor, sines: Sines) -> None:
        heads, width, num_sines = sines.gain.shape
        shape = *positions.shape[:1], heads, positions.shape[1], 2 * num_sines, width
        device = positions.device
        self.q, self.k = (
            torch.empty(shape, dtype=product_dtype(device), device=device) for _ in range(2)
        )
        with torch.no_grad():
            for part in blocks(positions):
                self.q[:, :, part], self.k[:, :, part] = sines.omega(positions[:, part])
        self.grad_q, self.grad_k = (
            PassLocal(partial(torch.zeros_like, x, dtype=torch.float32)) for x in (self.q, self.k)
        )

    @staticmethod
    def of(positions: Tensor, sines: Sines) -> tuple[Omega, Tensor]:
        """Return Ω at positions [1|B, L, P] and its gradient anchor.

        The anchor represents Ω in the autograd graph. The backward pass of each layer runs before
        the anchor's and gives it a zero, so that no gradient of the size of Ω passes between
        layers. The anchor is not an attribute: its graph refers to Ω, and a cycle of references
        would delay the release of memory.
        """
        omega = Omega(positions, sines)
        return omega, _OmegaBackward.apply(omega, positions, *sines)

    def project(
        self, q: Tensor, k: Tensor, anchor: Tensor, z: Tensor, gate: Gate | None
    ) -> tuple[Tensor, Tensor]:
        """Return q̂ and k̂ of one layer, [B, L, H, R] each; for the arguments, see `Project`."""
        position, constant, epsilon = gate or (None, None, None)
        return (
            Project.apply(q, position, constant, anchor, self.q, self.grad_q, z, epsilon),
            Project.apply(k, position, constant, anchor, self.k, self.grad_k, z, epsilon),
        )


class _OmegaBackward(torch.autograd.Function):
    """The anchor of Ω; its backward pass differentiates Ω once, with the sum over layers."""

    @staticmethod
    def forward(ctx: Any, omega: Omega, positions: Tensor, *sines: Tensor | None) -> Tensor:
        ctx.save_for_backward(positions, *sines)
        ctx.omega = omega
        return torch.zeros(1, device=positions.device)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        positions, *sines = ctx.saved_tensors
        grads = ctx.omega.grad_q.take(), ctx.omega.grad_k.take()
        leaves: list[Any] = [None if p is None else p.detach().requires_grad_() for p in sines]
        for part in blocks(positions):
            with torch.enable_grad():
                omega = Sines(*leaves).omega(positions[:, part])
            torch.autograd.backward(omega, [grad[:, :, part] for grad in grads])
        return None, None, *(None if p is None else p.grad for p in leaves)


def expand(x: Tensor, omega: Tensor) -> Tensor:
    """Return vec(x_d Ω_d), [H, B·T, 2K'·K], of x [H, B, T, K] and Ω [H, 1|B, T, 2K', K]."""
    return (x[..., None, :] * omega).flatten(3).flatten(1, 2)


def contract(x: Tensor, omega: Tensor, grad: Tensor, grad_omega: Tensor | None) -> Tensor:
    """Return the gradient of the argument x of `expand`, [H, B, T, K].

    Args:
        x, omega: arguments of `expand`.
        grad: gradient of its output, [H, B·T, 2K'·K]; overwritten.
        grad_omega: the gradient of Ω is added to it in place; None: it is not needed.
    """
    grad = grad.view(*x.shape[:3], *omega.shape[3:])
    if grad_omega is not None:
        if grad_omega.shape[1] == x.shape[1]:
            grad_omega.addcmul_(grad, x[..., None, :])
        else:
            grad_omega += (grad * x[..., None, :]).sum(1, keepdim=True)
    return grad.mul_(omega).sum(-2)  # in place: a second array would leave the cache


class Project(torch.autograd.Function):
    """x̂ = vec(x_d a_d Ω_d(n)) z + (x c) ε, by blocks of positions: [B, L, H, R].

    x is [B, L, H, K]. a (`position`) and c (`constant`) are [H, K]; None stands for ones and zeros.
    z is [H, 2K', K, R] and ε [H, K, R]. x̂ is computed and returned in the dtype of Ω. The gate
    scales z and ε, which are smaller than x.

    For the backward pass only x is kept. Vectors of width 2K'·K are computed again by blocks, in a
    CPU's cache.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,  # [B, L, H, K]
        position: Tensor | None,
        constant: Tensor | None,
        anchor: Tensor,
        omega: Tensor,
        grad_omega: PassLocal[Tensor],
        z: Tensor,
        epsilon: Tensor | None,
    ) -> Tensor:
        ctx.x_dtype = x.dtype
        x = x.to(omega.dtype)
        ctx.save_for_backward(x, position, constant, omega, z, epsilon)
        ctx.grad_omega = grad_omega
        batch, length, heads, _ = x.shape
        out = x.new_empty(batch, length, heads, z.shape[-1])
        with torch.autocast(x.device.type, enabled=False):
            z, epsilon = _gated(position, constant, z, epsilon, omega.dtype)
            for part in blocks(x):
                x_h = x[:, part].permute(2, 0, 1, 3)  # [H, B, T, K]
                y = expand(x_h, omega[:, :, part].transpose(0, 1)) @ z
                if epsilon is not None:
                    y = y.baddbmm_(x_h.flatten(1, 2), epsilon)
                out[:, part] = y.unflatten(1, (batch, -1)).permute(1, 2, 0, 3)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, position, constant, omega, z, epsilon = ctx.saved_tensors
        grad_omega = ctx.grad_omega.get() if ctx.needs_input_grad[3] else None
        z, epsilon = _gated(position, constant, z, epsilon, omega.dtype)
        grad_x = torch.empty_like(x)
        # Gradients of the logarithms of a and c: Σ x ∂x of each of the two terms.
        grad_position, grad_constant = (
            None if p is None else torch.zeros_like(p, dtype=torch.float32)
            for p in (position, constant)
        )
        for part in blocks(x):
            x_h = x[:, part].permute(2, 0, 1, 3)
            g_h = grad[:, part].permute(2, 0, 1, 3).flatten(1, 2)  # [H, B·T, R]
            omega_h = omega[:, :, part].transpose(0, 1)
            into = None if grad_omega is None else grad_omega[:, :, part].transpose(0, 1)
            g_x = contract(x_h, omega_h, g_h @ z.mT, into)
            if epsilon is not None:
                g_c = (g_h @ epsilon.mT).view_as(g_x)
                grad_position += (g_x * x_h).sum((1, 2))
                grad_constant += (g_c * x_h).sum((1, 2))
                g_x = g_x + g_c
            grad_x[:, part] = g_x.permute(1, 2, 0, 3)
        grad_anchor = grad.new_zeros(1, dtype=torch.float32)
        if epsilon is not None:  # a factor that rounds to 0 has no gradient here
            grad_position /= position.clamp(min=torch.finfo(torch.float32).tiny)
            grad_constant /= constant.clamp(min=torch.finfo(torch.float32).tiny)
        return grad_x.to(ctx.x_dtype), grad_position, grad_constant, grad_anchor, *(None,) * 4


def _gated(
    position: Tensor | None,
    constant: Tensor | None,
    z: Tensor,
    epsilon: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor | None]:
    """Return a z, [H, 2K'·K, R], and c ε, [H, K, R]; without a gate z and None."""
    if position is None or constant is None or epsilon is None:
        return z.flatten(1, 2).to(dtype), None
    z = (z * position[:, None, :, None]).flatten(1, 2).to(dtype)
    return z, (epsilon * constant[..., None]).to(dtype)


def blocks(x: Tensor) -> list[slice]:
    """Return slices of the positions of x [B, L, ...], small enough for a CPU's cache."""
    length = x.shape[1]
    if length == 1:  # a decoding step; its exported graph must not depend on the batch size
        return [slice(0, 1)]
    size = max(16, 128 // x.shape[0])
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]
