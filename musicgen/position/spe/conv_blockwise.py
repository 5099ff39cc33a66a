"""The codes of ConvSPE as arrays over positions, shared by all layers, and their gradient.

The gradient of the codes is computed once, from the contributions of all layers.
`benchmarks/spe_gradients.py` measures what this saves compared with sums by autograd. This
implementation is for CPUs; `batched.py` has the one for accelerators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from musicgen.position.base import LayerCode
from musicgen.position.spe.backward_pass import PassLocal
from musicgen.position.spe.base import Gate
from musicgen.position.spe.conv_noise import ConvNoise
from musicgen.position.spe.sine_blockwise import blocks


class Contribution(NamedTuple):
    """The contribution of a layer to the gradient of a code: the sum of u gᵀ at each slot."""

    slots: Tensor | None  # [1|B, L]; None means 0, 1, …, L − 1
    u: Tensor  # [B, L, H, K]
    grad: Tensor  # [B, L, H, R]


class CodeArrays:
    """The codes q̄ and k̄ at N slots, one per position: [N, H, K, R] each.

    `grads_q` and `grads_k` collect the contributions of layers to their gradients.
    """

    def __init__(self, q: Tensor, k: Tensor) -> None:
        self.q, self.k = q, k
        self.grads_q: PassLocal[list[Contribution]] = PassLocal(list)
        self.grads_k: PassLocal[list[Contribution]] = PassLocal(list)

    @staticmethod
    def of(
        z: Tensor, filter_q: Tensor, filter_k: Tensor, dtype: torch.dtype
    ) -> tuple[CodeArrays, Tensor]:
        """Return the codes, in `dtype`, and a gradient anchor.

        The anchor represents the codes in the autograd graph. The backward pass of each layer runs
        before the anchor's and gives it a zero, so that no gradient of the size of the codes passes
        between layers. The anchor is not an attribute: its graph refers to the codes, and a cycle
        of references would delay the release of memory.

        Args:
            z: noise [H, K, positions, R].
            filter_q, filter_k: filters [H, K, F].
        """
        filter_q, filter_k = filter_q.float(), filter_k.float()
        noises = [ConvNoise(z_head, filter_q.shape[-1]) for z_head in z]
        shape = noises[0].num_positions, len(z), z.shape[1], z.shape[-1]
        q, k = (torch.empty(shape, dtype=dtype, device=z.device) for _ in range(2))
        with torch.no_grad(), torch.autocast(z.device.type, enabled=False):
            for head, noise in enumerate(noises):
                noise.correlate(filter_q[head], q[:, head])
                noise.correlate(filter_k[head], k[:, head])
        codes = CodeArrays(q, k)
        return codes, _FiltersBackward.apply(filter_q, filter_k, noises, codes)

    def append(self, other: CodeArrays, start: int) -> CodeArrays:
        """Return these codes from slot `start` on, followed by `other`, without gradients."""
        q, k = torch.cat((self.q[start:], other.q)), torch.cat((self.k[start:], other.k))
        return CodeArrays(q, k)


@dataclass(eq=False)
class ConvCode(LayerCode):
    """Encoding by the codes of ConvSPE: the gate of a layer, the codes, and each token's slot."""

    gate: Gate | None  # its factors may differ between tokens: [1|B, L, H, K]
    codes: CodeArrays
    grad_anchor: Tensor
    slots: Tensor | None  # [1|B, L]; None means 0, 1, …, L − 1

    def encode(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        codes = self.codes
        with torch.autocast(q.device.type, enabled=False):
            q_hat = self._project(q.to(codes.q.dtype), codes.q, codes.grads_q)
            k_hat = self._project(k.to(codes.k.dtype), codes.k, codes.grads_k)
        return q_hat, k_hat

    def _project(self, x: Tensor, code: Tensor, grads: PassLocal[list[Contribution]]) -> Tensor:
        if self.gate is None:
            return _Project.apply(x, self.grad_anchor, code, self.slots, grads)
        position, constant, epsilon = (p.to(x.dtype) for p in self.gate if p is not None)
        x_hat = _Project.apply(x * position, self.grad_anchor, code, self.slots, grads)
        return x_hat + torch.einsum("blhk,hkr->blhr", x * constant, epsilon)


class _Project(torch.autograd.Function):
    """x̂[n, r] = Σ_d u[n, d] x̄[n, d, r]; its backward pass adds a contribution to `grads`."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, anchor: Tensor, code: Tensor, slots: Tensor | None, grads: Any
    ) -> Tensor:
        ctx.save_for_backward(u, code, slots)
        ctx.grads = grads
        return _times_codes(u, code, slots)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        u, code, slots = ctx.saved_tensors
        if ctx.needs_input_grad[1]:
            ctx.grads.get().append(Contribution(slots, u, grad))
        # A row times the transpose is three times as fast here as a matrix times a column.
        grad_u = _times_codes(grad, code.transpose(-1, -2), slots)
        return grad_u, grad.new_zeros(1, dtype=torch.float32), None, None, None


def _times_codes(x: Tensor, code: Tensor, slots: Tensor | None) -> Tensor:
    """Return vectors [B, L, H, K] times the codes [N, H, K, R] at their slots: [B, L, H, R]."""
    parts = []
    for part in blocks(x):
        vectors = x[:, part]
        if slots is None:  # one product over all sequences, as matmul would copy the code for each
            parts.append((vectors.permute(1, 2, 0, 3) @ code[part]).permute(2, 0, 1, 3))
        else:
            parts.append((vectors[..., None, :] @ code[slots[:, part]])[..., 0, :])
    return torch.cat(parts, dim=1)


class _FiltersBackward(torch.autograd.Function):
    """The anchor of the codes; its backward pass computes the gradients of the filters."""

    @staticmethod
    def forward(
        ctx: Any, filter_q: Tensor, filter_k: Tensor, noises: list[ConvNoise], codes: CodeArrays
    ) -> Tensor:
        ctx.noises, ctx.codes, ctx.shape = noises, codes, filter_q.shape
        return filter_q.new_zeros(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        codes: CodeArrays = ctx.codes
        sides = codes.grads_q.take(), codes.grads_k.take()
        grads = [codes.q.new_zeros(ctx.shape, dtype=torch.float32) for _ in sides]
        for head, noise in enumerate(ctx.noises):
            for grad, contributions in zip(grads, sides, strict=True):
                if contributions:
                    code_gradient = _code_gradient(contributions, head, len(codes.q))
                    grad[head] = noise.taps_gradient(code_gradient)
        return *grads, None, None


def _code_gradient(
    contributions: list[Contribution], head: int, num_slots: int
) -> Callable[[slice], Tensor]:
    """Return a function from a slice of T slots to the gradient of the code there, [T, K, R].

    It is the sum of u gᵀ over layers and sequences, for one head.
    """
    u = torch.cat([c.u[:, :, head] for c in contributions])  # [layers·B, L, K]
    g = torch.cat([c.grad[:, :, head] for c in contributions])
    slots = contributions[0].slots  # the same for all layers of a forward pass
    if slots is None:  # in parts that fit a CPU's cache
        u, g = (F.pad(x, (0, 0, 0, num_slots - x.shape[1])) for x in (u, g))
        return lambda part: (u[:, part].permute(1, 2, 0) @ g[:, part].transpose(0, 1)).float()
    total = u.new_zeros((num_slots, u.shape[-1], g.shape[-1]), dtype=torch.float32)
    # Several tokens may share a slot; a token has the same slot in all layers.
    u, g = (x.unflatten(0, (-1, len(slots))).permute(1, 2, 3, 0) for x in (u, g))
    for part in blocks(u):
        outer = u[:, part] @ g[:, part].transpose(-1, -2)  # [1|B, T, K, R]
        total.index_add_(0, slots[:, part].flatten(), outer.flatten(0, 1).float())
    return total.__getitem__
