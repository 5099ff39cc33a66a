"""Unitary changes of basis P, which LRPE applies to every head's vector before it turns it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn


class Basis(nn.Module, ABC):
    """P: [B, L, H, M] -> [B, L, H, M], of the given code.

    Attributes:
        keeps_sign: positive vectors stay positive.
    """

    keeps_sign: ClassVar[bool] = False

    @abstractmethod
    def forward(self, x: Tensor, code: int) -> Tensor: ...


class Identity(Basis):
    """P = I."""

    keeps_sign = True

    def forward(self, x: Tensor, code: int) -> Tensor:
        return x


class OddEven(Basis):
    """A permutation: even indices first, then odd ones (Qin et al. 2023, eq. 74)."""

    keeps_sign = True

    def forward(self, x: Tensor, code: int) -> Tensor:
        return torch.cat((x[..., 0::2], x[..., 1::2]), dim=-1)


class Fourier(Basis):
    """The unitary discrete Fourier transform, to complex vectors."""

    def forward(self, x: Tensor, code: int) -> Tensor:
        return torch.fft.fft(x, norm="ortho")


class Householder(Basis):
    """P = I − 2vvᵀ / vᵀv, with v ~ N(0, I) for each code and head (Qin et al. 2023, eq. 73).

    Args:
        num_codes, num_heads, width: how many v, and how long.
        learned: v is a parameter; else it is fixed, and saved with the model.
    """

    v: Tensor

    def __init__(self, num_codes: int, num_heads: int, width: int, *, learned: bool) -> None:
        super().__init__()
        v = torch.randn(num_codes, num_heads, width)
        if learned:
            self.v = nn.Parameter(v)
        else:
            self.register_buffer("v", v)

    def forward(self, x: Tensor, code: int) -> Tensor:
        v = self.v[code].to(x.dtype)
        return _Reflect.apply(x, v / v.norm(dim=-1, keepdim=True))


class _Reflect(torch.autograd.Function):
    """x − 2v (v·x), whose own transpose is its backward: x [B, L, H, M], unit vectors v [H, M]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, v)
        return torch.addcmul(x, _along(x, v), v, value=-2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        x, v = ctx.saved_tensors
        along = _along(grad, v)
        grad_v = None
        if x is not None:
            grad_v = -2 * (grad * _along(x, v) + x * along).sum((0, 1))
        return torch.addcmul(grad, along, v, value=-2), grad_v


def _along(x: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("blhm,hm->blh", x, v)[..., None]
