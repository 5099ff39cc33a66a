"""Linearised relative positional encoding (Qin et al. 2023): W_s = Pᴴ Λ^(s) P, unitary.

(W_s q)ᴴ (W_t k) = qᴴ W_(t − s) k: each vector is encoded by its own position, and products depend
on t − s only. The leading Pᴴ cancels in products and is left out.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from musicgen.position.base import LayerCode, PositionalEncoding, Site, at_least_fp32
from musicgen.random import NoiseKey
from musicgen.validation import check_bool, check_choice


class LRPE(PositionalEncoding):
    """The base of the three types.

    On queries and keys (`query_key`), FAVOR+'s positive features estimate exp(qᵀ W_(t − s) k), and
    outputs stay averages of the values. On feature maps φ (`feature`), as in the papers, products
    φ(q)ᵀ W_(t − s) φ(k) depend on t − s exactly, but where Λ or P turns features negative, weights
    have either sign and outputs have no bound. They are largest where queries meet few keys: with
    relu's sparse features tens of times the values, with FAVOR+'s, of exponential range, more by
    orders of magnitude as logits grow. Before elu and relu, `query_key` leaves products that depend
    on both positions.

    Args:
        basis: P, one of `bases`.
        learned_basis: learn Householder's v.
        shared: use one code for all layers, else one code with its own parameters per layer.
        site: `query_key` or `feature`; None: `feature` under elu and relu, else `query_key`.
        normaliser: of linear attention, at the site `feature`. `unencoded` is RoFormer's (Su et
            al. 2021, §3.3, eq. 19): of the features before encoding, always positive. `encoded` is
            LRPE's own (Qin et al. 2023, eq. 38): of the features that make the numerators. Weights
            then add up to 1, but where features turn negative the sum may vanish or be negative:
            its sign is kept, and 1e-6 is added to its magnitude. None: `encoded` where features
            stay positive, else `unencoded`.

    Raises:
        ValueError: `basis` is not one of `bases`, or `normaliser` none of the words above.
    """

    sites = frozenset({Site.QUERY_KEY, Site.FEATURE})
    relative: Literal["no", "exact", "expected"] = "exact"
    bases: ClassVar[tuple[str, ...]] = ("householder", "identity", "odd_even")
    keeps_sign: bool = False  # Λ, and of an object ΛP, maps positive vectors to positive vectors

    def __init__(
        self,
        *args: int,
        basis: str = "householder",
        learned_basis: bool = False,
        shared: bool = True,
        site: str | None = None,
        normaliser: str | None = None,
        **reading: Any,
    ) -> None:
        super().__init__(*args, **reading)
        check_choice("basis", basis, self.bases)
        check_choice("normaliser", normaliser, (None, "unencoded", "encoded"))
        check_bool("shared", shared)
        check_bool("learned_basis", learned_basis)
        self.num_codes = 1 if shared else self.num_layers
        self.shares_kernel = shared
        self.keeps_sign = self.keeps_sign and basis in ("identity", "odd_even")
        self.encodes_normaliser = normaliser == "encoded" if normaliser else self.keeps_sign
        sizes = self.num_codes, self.num_heads, self.width
        fixed = {"identity": identity, "odd_even": odd_even, "fourier": fourier}
        self.basis = fixed[basis] if basis in fixed else Householder(*sizes, learned=learned_basis)

    @abstractmethod
    def transform(self, positions: Tensor, code: int) -> Callable[[Tensor], Tensor]:
        """Return Λ^(s) at positions [1|B, L, num_dims]: Px [B, L, H, M] -> [B, L, H, E]."""

    def forward(
        self, positions: Tensor, *, noise: NoiseKey | None = None, state: Any = None
    ) -> tuple[Sequence[LRPECode], Any]:
        return self._codes(self.read(positions)), None

    def _codes(self, positions: Tensor) -> Sequence[LRPECode]:
        """Return one code per layer for positions [1|B, L, num_dims]."""
        with torch.autocast(positions.device.type, enabled=False):
            transforms = [self.transform(positions, code) for code in range(self.num_codes)]
        options: dict[str, Any] = {"keeps_sign": self.keeps_sign, "log_decay": self.log_decay()}
        options["encodes_normaliser"] = self.encodes_normaliser
        codes = [LRPECode(self.basis, i, t, **options) for i, t in enumerate(transforms)]
        return codes * (self.num_layers // self.num_codes)

    def kernel(self, lags: Tensor, layer: int | None = None) -> Tensor:
        """Return the diagonal of W_τ, the product of each feature with itself at lag τ: [H, M, N].

        It compares to the P_d of SPE.
        """
        steps = lags.reshape(-1, self.num_dims)
        code = self._codes(F.pad(steps, (0, 0, 1, 0))[None])[layer or 0]
        dtype = torch.promote_types(lags.dtype, torch.float32)
        units = torch.eye(self.width, dtype=dtype, device=lags.device)[:, None, None]
        units = units.expand(-1, 1 + len(steps), self.num_heads, -1)
        encoded = code.apply(units)  # [M, 1 + N, H, E]
        return (encoded[:, :1] * encoded[:, 1:]).sum(-1).permute(2, 0, 1)


@dataclass(eq=False)
class LRPECode(LayerCode):
    """Λ^(s) P of one code, applied to queries and keys alike."""

    basis: Callable[[Tensor, int], Tensor]
    index: int
    transform: Callable[[Tensor], Tensor]

    def apply(self, x: Tensor) -> Tensor:
        """Encode vectors in fp32 or fp64: [B, L, H, M] -> [B, L, H, E]."""
        with torch.autocast(x.device.type, enabled=False):
            (x,) = at_least_fp32(x)
            return self.transform(self.basis(x, self.index)).to(x.dtype)

    def encode(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.apply(q), self.apply(k)


def identity(x: Tensor, code: int) -> Tensor:
    """P = I, the basis of RoPE and PermuteFormer."""
    return x


def odd_even(x: Tensor, code: int) -> Tensor:
    """Permute x_j -> x_{π(j)}: even places take the first half, odd ones the second (eq. 74)."""
    j = torch.arange(x.shape[-1], device=x.device)
    return x[..., j // 2 + j % 2 * ((len(j) + 1) // 2)]


def fourier(x: Tensor, code: int) -> Tensor:
    """Return the unitary discrete Fourier transform, which is complex."""
    return torch.fft.fft(x, norm="ortho")


class Householder(nn.Module):
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
