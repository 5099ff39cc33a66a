"""Unitary changes of basis P, which LRPE applies to each head's vector before Λ^(s)."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn


class Basis(nn.Module, ABC):
    """A unitary matrix P for each code and head."""

    keeps_sign: ClassVar[bool] = False  # P maps positive vectors to positive vectors

    @abstractmethod
    def forward(self, x: Tensor, code: int) -> Tensor:
        """Return P x with the P of a code: [B, L, H, M] -> [B, L, H, M]."""


class Identity(Basis):
    """P = I."""

    keeps_sign = True

    def forward(self, x: Tensor, code: int) -> Tensor:
        return x


class OddEven(Basis):
    """The permutation to even indices first, then odd ones (Qin et al. 2023, eq. 74)."""

    keeps_sign = True

    def forward(self, x: Tensor, code: int) -> Tensor:
        return torch.cat((x[..., 0::2], x[..., 1::2]), dim=-1)


class Fourier(Basis):
    """The unitary discrete Fourier transform. Its output is complex."""

    def forward(self, x: Tensor, code: int) -> Tensor:
        return torch.fft.fft(x, norm="ortho")


class Householder(Basis):
    """P = I − 2vvᵀ / vᵀv, with v ~ N(0, I) for each code and head (Qin et al. 2023, eq. 73)."""

    v: Tensor  # [codes, H, M]

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
    """x − 2v (v·x) for x [B, L, H, M] and unit vectors v [H, M]. It is its own transpose."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, v)
        return torch.addcmul(x, _dot(x, v), v, value=-2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        x, v = ctx.saved_tensors
        grad_dot = _dot(grad, v)
        grad_v = None if x is None else -2 * (grad * _dot(x, v) + x * grad_dot).sum((0, 1))
        return torch.addcmul(grad, grad_dot, v, value=-2), grad_v


def _dot(x: Tensor, v: Tensor) -> Tensor:
    """Return v·x for each head: [B, L, H, 1]."""
    return torch.einsum("blhm,hm->blh", x, v)[..., None]
