"""Codes as arrays over places, once for all layers, and their gradient formed once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from musicgen.position.base import LayerCode, product_dtype
from musicgen.position.conv_noise import ConvNoise
from musicgen.position.spe import Gate
from musicgen.position.waves import blocks


@dataclass
class Codes:
    """q̄ and k̄ over places, [N, H, K, R] each, once for all layers.

    In the type of products.

    Attributes:
        uses: for each side, what every layer's backward leaves for theirs.
    """

    q: Tensor
    k: Tensor
    uses: tuple[list[_Use], list[_Use]] = field(default_factory=lambda: ([], []))

    @staticmethod
    def of(noise: ConvNoise, filter_q: Tensor, filter_k: Tensor) -> tuple[Codes, Tensor]:
        """What filters [H, K, *F] make of the noise, and a token.

        The token stands for it in the graph, so that no gradient of its size is passed from layer
        to layer. It is kept apart, since its graph holds the codes: a cycle would keep them until
        the next collection.
        """
        device, heads = filter_q.device, len(filter_q)
        shape = noise.num_places, heads, noise.width, noise.realizations
        q, k = (torch.empty(shape, dtype=product_dtype(device), device=device) for _ in range(2))
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            # A head at a time, so that there is never the noise of all.
            for head in range(heads):
                z = noise.draw(head)
                noise.correlate(z, filter_q[head], q[:, head])
                noise.correlate(z, filter_k[head], k[:, head])
        codes = Codes(q, k)
        return codes, _Collect.apply(filter_q, filter_k, noise, codes)

    def joined(self, more: Codes, start: int = 0) -> Codes:
        """These from the place `start` on, and others behind them."""
        return Codes(torch.cat((self.q[start:], more.q)), torch.cat((self.k[start:], more.k)))


class _Use(NamedTuple):
    places: Tensor | None  # [1|B, L]; None: all from the first on
    u: Tensor  # [B, L, H, K]
    grad: Tensor  # [B, L, H, R]


class ConvCode(LayerCode):
    """Codes, the places of the tokens in them [1|B, L] (None: from their start), a layer's gate.

    The gate's factors may differ by token: [1|B, L, H, K].
    """

    def __init__(
        self, gate: Gate | None, codes: Codes, token: Tensor, places: Tensor | None
    ) -> None:
        self.gate, self.codes, self.token, self.places = gate, codes, token, places

    def encode(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(q.device.type, enabled=False):
            q_hat, k_hat = (
                self._project(x.to(code.dtype), code, uses)
                for x, code, uses in zip(
                    (q, k), (self.codes.q, self.codes.k), self.codes.uses, strict=True
                )
            )
        return q_hat, k_hat

    def _project(self, x: Tensor, code: Tensor, uses: list[_Use]) -> Tensor:
        if self.gate is None:
            return _Mix.apply(x, self.token, code, self.places, uses)
        position, constant, epsilon = (p.to(x.dtype) for p in self.gate if p is not None)
        x_hat = _Mix.apply(x * position, self.token, code, self.places, uses)
        return x_hat + torch.einsum("blhk,hkr->blhr", x * constant, epsilon)


class _Mix(torch.autograd.Function):
    """x̂[n, r] = Σ_d u[n, d] x̄[n, d, r]; the code's gradient is left for `_Collect`."""

    @staticmethod
    def forward(
        ctx: Any,
        u: Tensor,
        token: Tensor,
        code: Tensor,
        places: Tensor | None,
        uses: list[_Use],
    ) -> Tensor:
        ctx.save_for_backward(u, code, places)
        ctx.uses = uses
        return _times(u, code, places)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        u, code, places = ctx.saved_tensors
        if ctx.needs_input_grad[1]:
            ctx.uses.append(_Use(places, u, grad))
        # As a row times the transpose: three times as fast here as a matrix times a column.
        grad_u = _times(grad, code.transpose(-1, -2), places)
        return grad_u, grad.new_zeros(1, dtype=torch.float32), None, None, None


def _times(x: Tensor, code: Tensor, places: Tensor | None) -> Tensor:
    """Rows [B, L, H, K] times the matrices [N, H, K, R] at their places: [B, L, H, R]."""
    parts = []
    for part in blocks(x):
        rows = x[:, part]
        if places is None:  # rows of a place together: matmul would copy its matrix for each
            parts.append((rows.permute(1, 2, 0, 3) @ code[part]).permute(2, 0, 1, 3))
        else:
            parts.append((rows[..., None, :] @ code[places[:, part]])[..., 0, :])
    return torch.cat(parts, dim=1)


class _Collect(torch.autograd.Function):
    """Behind all layers: the filters' gradients, from all uses of the codes at once.

    It counts on a backward that reaches it: after one for other tensors alone
    (`torch.autograd.grad(loss, q)`) their uses would count again in the next.
    """

    @staticmethod
    def forward(
        ctx: Any, filter_q: Tensor, filter_k: Tensor, noise: ConvNoise, codes: Codes
    ) -> Tensor:
        ctx.noise, ctx.codes, ctx.shape = noise, codes, filter_q.shape
        return filter_q.new_zeros(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        codes: Codes = ctx.codes
        noise: ConvNoise = ctx.noise
        grads = [codes.q.new_zeros(ctx.shape, dtype=torch.float32) for _ in codes.uses]
        for head in range(len(grads[0])):
            z = noise.draw(head)
            for grad, uses in zip(grads, codes.uses, strict=True):
                if uses:
                    grad[head] = noise.gradient(z, _gradient(uses, head, len(codes.q)))
        for uses in codes.uses:
            uses.clear()
        return *grads, None, None


def _gradient(uses: list[_Use], head: int, length: int) -> Tensor:
    """Σ over layers and rows of u gᵀ at each place, for one head: [N, K, R]."""
    u = torch.cat([use.u[:, :, head] for use in uses])  # [layers·B, L, K]
    g = torch.cat([use.grad[:, :, head] for use in uses])
    full = u.new_zeros((length, u.shape[-1], g.shape[-1]), dtype=torch.float32)
    places = uses[0].places  # the same for all layers of a forward
    if places is None:
        full[: u.shape[1]] = u.permute(1, 2, 0) @ g.transpose(0, 1)
        return full
    # Tokens may share a place, within a row too; a token's place is the same in all layers.
    u, g = (x.unflatten(0, (-1, len(places))).permute(1, 2, 3, 0) for x in (u, g))
    for part in blocks(u):
        outer = u[:, part] @ g[:, part].transpose(-1, -2)  # [1|B, T, K, R]
        full.index_add_(0, places[:, part].flatten(), outer.flatten(0, 1).float())
    return full
