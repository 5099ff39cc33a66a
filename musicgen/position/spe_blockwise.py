"""Products of queries and keys with stochastic codes by blocks of positions, for CPUs.

`spe.py` has the products for accelerators. What all layers share (Ω of SineSPE, the code arrays of
ConvSPE) is computed once, and so is its gradient, from the contributions of all layers. An anchor
represents it in the autograd graph: the backward pass of each layer runs before the anchor's and
gives it a zero, so that no gradient of that size passes between layers.
`benchmarks/spe_gradients.py` measures what this saves compared with sums by autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from musicgen.position.base import product_dtype
from musicgen.position.spe import Gate, Sines

T = TypeVar("T")

# Positions in a row of noise. The Toeplitz matrices of short rows have fewer zeros.
ROW_LENGTH = 32


class PassLocal(Generic[T]):
    """A value that the functions of one backward pass share, such as a sum over layers.

    A pass may stop before the function that takes the value, as in `torch.autograd.grad(loss, q)`.
    The next pass then drops the value.

    Args:
        create: returns a new value, once per pass.
    """

    def __init__(self, create: Callable[[], T]) -> None:
        self._create = create
        self._value: T | None = None
        self._pass_id = -1

    def get(self) -> T:
        """Return the value of the current pass."""
        pass_id = torch._C._current_graph_task_id()
        if self._value is None or pass_id != self._pass_id:
            self._value, self._pass_id = self._create(), pass_id
        return self._value

    def take(self) -> T:
        """Return the value of the current pass and drop it, so that its memory can be freed."""
        value = self.get()
        self._value = None
        return value


def blocks(x: Tensor) -> list[slice]:
    """Return slices of the positions of x [B, L, ...], small enough for a CPU's cache."""
    length = x.shape[1]
    if length == 1:  # a decoding step; its exported graph must not depend on the batch size
        return [slice(0, 1)]
    size = max(16, 128 // x.shape[0])
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def sine_products(positions: Tensor, sines: Sines) -> list[partial[Tensor]]:
    """Return `sines_by_blocks` of queries and of keys at positions [1|B, L, P], except for z.

    Ω is [1|B, H, L, 2K', K] in the dtype of products; its gradients are fp32.
    """
    heads, width, num_sines = sines.gain.shape
    shape = *positions.shape[:1], heads, positions.shape[1], 2 * num_sines, width
    dtype, device = product_dtype(positions.device), positions.device
    omegas = [torch.empty(shape, dtype=dtype, device=device) for _ in range(2)]
    with torch.no_grad():
        for part in blocks(positions):
            for omega, values in zip(omegas, sines.omega(positions[:, part]), strict=True):
                omega[:, :, part] = values
    grads = [PassLocal(partial(torch.zeros_like, x, dtype=torch.float32)) for x in omegas]
    anchor = _SinesBackward.apply(grads, positions, *sines)
    return [
        partial(sines_by_blocks, anchor=anchor, omega=omega, grad_omega=grad)
        for omega, grad in zip(omegas, grads, strict=True)
    ]


class _SinesBackward(torch.autograd.Function):
    """The anchor of Ω; its backward pass differentiates Ω once, with the sum over layers."""

    @staticmethod
    def forward(
        ctx: Any, grads: list[PassLocal[Tensor]], positions: Tensor, *sines: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(positions, *sines)
        ctx.grads = grads
        return torch.zeros(1, device=positions.device)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        positions, *sines = ctx.saved_tensors
        grads = [grad.take() for grad in ctx.grads]
        leaves: list[Any] = [None if p is None else p.detach().requires_grad_() for p in sines]
        for part in blocks(positions):
            with torch.enable_grad():
                omegas = Sines(*leaves).omega(positions[:, part])
            torch.autograd.backward(omegas, [grad[:, :, part] for grad in grads])
        return None, None, *(None if p is None else p.grad for p in leaves)


def sines_by_blocks(
    x: Tensor,
    gate: Gate | None,
    *,
    anchor: Tensor,
    omega: Tensor,
    grad_omega: PassLocal[Tensor],
    z: Tensor,
) -> Tensor:
    """Return x̂ as `times_sines` does, [B, L, H, R]; for x, Ω and z, see there. Without autocast."""
    return _TimesSines.apply(x, *(gate or (None,) * 3), anchor, omega, grad_omega, z)


class _TimesSines(torch.autograd.Function):
    """x̂ = vec(x_d a_d Ω_d(n)) z + (x c) ε, by blocks of positions.

    Without a gate, a, c and ε are None. x̂ is computed and returned in the dtype of Ω. The gate
    scales z and ε, which are smaller than x. For the backward pass only x is kept. Vectors of width
    2K'·K are computed again by blocks, in a CPU's cache.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,  # [B, L, H, K]
        position: Tensor | None,
        constant: Tensor | None,
        epsilon: Tensor | None,
        anchor: Tensor,
        omega: Tensor,
        grad_omega: PassLocal[Tensor],
        z: Tensor,
    ) -> Tensor:
        ctx.x_dtype = x.dtype
        x = x.to(omega.dtype)
        ctx.save_for_backward(x, position, constant, omega, z, epsilon)
        ctx.grad_omega = grad_omega
        batch, length, heads, _ = x.shape
        out = x.new_empty(batch, length, heads, z.shape[-1])
        z, epsilon = _gated(position, constant, z, epsilon, omega.dtype)
        for part in blocks(x):
            x_h = x[:, part].permute(2, 0, 1, 3)  # [H, B, T, K]
            waves = x_h[..., None, :] * omega[:, :, part].transpose(0, 1)  # [H, B, T, 2K', K]
            y = waves.flatten(3).flatten(1, 2) @ z
            if epsilon is not None:
                y = y.baddbmm_(x_h.flatten(1, 2), epsilon)
            out[:, part] = y.unflatten(1, (batch, -1)).permute(1, 2, 0, 3)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, position, constant, omega, z, epsilon = ctx.saved_tensors
        grad_omega = ctx.grad_omega.get() if ctx.needs_input_grad[4] else None
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
            omega_h = omega[:, :, part].transpose(0, 1)  # [H, 1|B, T, 2K', K]
            g_waves = (g_h @ z.mT).view(*x_h.shape[:3], *omega_h.shape[3:])  # [H, B, T, 2K', K]
            if grad_omega is not None:
                into = grad_omega[:, :, part].transpose(0, 1)
                if into.shape[1] == x_h.shape[1]:
                    into.addcmul_(g_waves, x_h[..., None, :])
                else:
                    into += (g_waves * x_h[..., None, :]).sum(1, keepdim=True)
            g_x = g_waves.mul_(omega_h).sum(-2)  # in place: a second array would leave the cache
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
        grads = grad_x.to(ctx.x_dtype), grad_position, grad_constant, None, grad_anchor
        return *grads, None, None, None


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


# A layer's contribution (u, g) to the gradient of a code, Σ u gᵀ: u [B, L, H, K], g [B, L, H, R].
Contributions = PassLocal[list[tuple[Tensor, Tensor]]]


def toeplitz(taps: Tensor, row_length: int, patch_length: int) -> Tensor:
    """Return matrices whose row i has the taps from column i on: [..., F] -> [..., row, patch]."""
    padded = F.pad(taps, (row_length - 1, patch_length - taps.shape[-1]))
    return padded.unfold(-1, patch_length, 1).flip(-2)


def _patches(z: Tensor, num_positions: int, filter_length: int) -> list[tuple[slice, Tensor]]:
    """Return rows of positions with the noise z [K, positions, R] that filters cover there.

    The noise is [K, patch, R]: that of a row, and of the whole rows after it that filters reach.
    """
    patch_length = ROW_LENGTH * (1 - (1 - filter_length) // ROW_LENGTH)
    starts = range(0, num_positions, ROW_LENGTH)
    return [(slice(i, i + ROW_LENGTH), z[:, i : i + patch_length]) for i in starts]


def filter_noise(
    z: Tensor, filters: list[Tensor], num_positions: int, slots: Tensor | None, dtype: torch.dtype
) -> tuple[list[Tensor], list[partial[Tensor]]]:
    """Return q̄ and k̄, Σ_p taps[p] z[position + p], and `codes_by_blocks` with each of them.

    The codes are [N, H, K, R] each, in `dtype`.

    Args:
        z: noise at N positions and at those after them that filters reach, [H, K, positions, R].
        filters: in fp32, [H, K, F] each.
        num_positions: N.
        slots: the position of each token, [1|B, L]; None: 0, 1, …, L − 1.
    """
    heads, width, _, realizations = z.shape
    shape = num_positions, heads, width, realizations
    codes = [torch.empty(shape, dtype=dtype, device=z.device) for _ in filters]
    with torch.no_grad():
        for head, z_head in enumerate(z):
            patches = _patches(z_head, num_positions, filters[0].shape[-1])
            for taps, code in zip(filters, codes, strict=True):
                matrix = toeplitz(taps[head], ROW_LENGTH, patches[0][1].shape[1])
                for row, patch in patches:
                    code[row, head] = (matrix @ patch).transpose(0, 1)
    grads: list[Contributions] = [PassLocal(list) for _ in filters]
    anchor = _FiltersBackward.apply(grads, z, num_positions, slots, *filters)
    return codes, [
        partial(codes_by_blocks, code=code, slots=slots, anchor=anchor, grads=grad)
        for code, grad in zip(codes, grads, strict=True)
    ]


class _FiltersBackward(torch.autograd.Function):
    """The anchor of the codes; its backward pass computes the gradients of the filters."""

    @staticmethod
    def forward(
        ctx: Any,
        grads: list[Contributions],
        z: Tensor,
        num_positions: int,
        slots: Tensor | None,
        *filters: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(z, slots)
        ctx.grads, ctx.num_positions, ctx.shape = grads, num_positions, filters[0].shape
        return filters[0].new_zeros(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        z, slots = ctx.saved_tensors
        sides = [grad.take() for grad in ctx.grads]
        grad_filters = [z.new_zeros(ctx.shape) for _ in sides]
        for head, z_head in enumerate(z):
            for grad, contributions in zip(grad_filters, sides, strict=True):
                if contributions:
                    grad_at = _code_gradient(contributions, slots, head, ctx.num_positions)
                    patches = _patches(z_head, ctx.num_positions, ctx.shape[-1])
                    grad[head] = _taps_gradient(patches, grad_at, ctx.shape[-1])
        return None, None, None, None, *grad_filters


def _taps_gradient(
    patches: list[tuple[slice, Tensor]],
    grad_at: Callable[[slice], Tensor],
    filter_length: int,
) -> Tensor:
    """Return the gradient of the taps, [K, F]: the sums of the diagonals of that of `toeplitz`."""
    matrix: Tensor | None = None
    for row, patch in patches:
        g, transposed = grad_at(row).transpose(0, 1), patch.transpose(1, 2)
        matrix = g @ transposed if matrix is None else matrix.baddbmm_(g, transposed)
    assert matrix is not None
    # In rows of width w, the flat index of entry (i, i + p) is i·(w + 1) + p. In rows of width
    # w + 1, that is entry (i, p).
    skewed = F.pad(matrix.flatten(-2), (0, ROW_LENGTH))
    skewed = skewed.unflatten(-1, (ROW_LENGTH, matrix.shape[-1] + 1))
    return skewed.sum(-2)[..., :filter_length]


def _code_gradient(
    contributions: list[tuple[Tensor, Tensor]], slots: Tensor | None, head: int, num_slots: int
) -> Callable[[slice], Tensor]:
    """Return a function from a slice of T slots to the gradient of a head's code: [T, K, R].

    It is the sum of the contributions of layers and sequences.
    """
    u, g = (torch.cat([x[:, :, head] for x in side]) for side in zip(*contributions, strict=True))
    if slots is None:  # in parts that fit a CPU's cache: u is [layers·B, L, K]
        u, g = (F.pad(x, (0, 0, 0, num_slots - x.shape[1])) for x in (u, g))
        return lambda part: (u[:, part].permute(1, 2, 0) @ g[:, part].transpose(0, 1)).float()
    total = u.new_zeros((num_slots, u.shape[-1], g.shape[-1]), dtype=torch.float32)
    # Several tokens may share a slot; a token has the same slot in all layers.
    u, g = (x.unflatten(0, (-1, len(slots))).permute(1, 2, 3, 0) for x in (u, g))
    for part in blocks(u):
        outer = u[:, part] @ g[:, part].transpose(-1, -2)  # [1|B, T, K, R]
        total.index_add_(0, slots[:, part].flatten(), outer.flatten(0, 1).float())
    return total.__getitem__


def codes_by_blocks(
    x: Tensor,
    gate: Gate | None,
    *,
    code: Tensor,
    slots: Tensor | None,
    anchor: Tensor | None = None,
    grads: Contributions | None = None,
) -> Tensor:
    """Return x̂ as `times_codes` does, [B, L, H, R]; for x, the code and its slots, see there.

    Args:
        anchor, grads: of `filter_noise`; None: the code has no gradient.
    """
    x = x.to(code.dtype)
    if gate is None:
        return _TimesCodes.apply(x, anchor, code, slots, grads)
    position, constant, epsilon = (p.to(x.dtype) for p in gate if p is not None)
    x_hat = _TimesCodes.apply(x * position, anchor, code, slots, grads)
    return x_hat + torch.einsum("blhk,hkr->blhr", x * constant, epsilon)


class _TimesCodes(torch.autograd.Function):
    """x̂[n, r] = Σ_d u[n, d] x̄[n, d, r]; its backward pass adds a contribution to `grads`."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, anchor: Any, code: Tensor, slots: Tensor | None, grads: Any
    ) -> Tensor:
        ctx.save_for_backward(u, code, slots)
        ctx.grads = grads
        return _code_products(u, code, slots)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        u, code, slots = ctx.saved_tensors
        if ctx.needs_input_grad[1]:
            ctx.grads.get().append((u, grad))
        # A row times the transpose is three times as fast here as a matrix times a column.
        grad_u = _code_products(grad, code.transpose(-1, -2), slots)
        grad_anchor = grad.new_zeros(1, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        return grad_u, grad_anchor, None, None, None


def _code_products(x: Tensor, code: Tensor, slots: Tensor | None) -> Tensor:
    """Return vectors [B, L, H, K] times the codes [N, H, K, R] at their slots: [B, L, H, R]."""
    parts = []
    for part in blocks(x):
        vectors = x[:, part]
        if (
            slots is None
        ):  # one product over all sequences, as matmul would copy the code per sequence
            parts.append((vectors.permute(1, 2, 0, 3) @ code[part]).permute(2, 0, 1, 3))
        else:
            parts.append((vectors[..., None, :] @ code[slots[:, part]])[..., 0, :])
    return torch.cat(parts, dim=1)
