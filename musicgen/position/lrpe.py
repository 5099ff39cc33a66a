"""Linearised relative positional encoding (Qin et al. 2023): W_s = Pᴴ Λ^(s) P, unitary.

(W_s q)ᴴ (W_t k) = qᴴ W_(t − s) k: each vector is encoded by its own position, and products depend
on t − s only. The leading Pᴴ cancels in products and is left out. Type 3, which permutes features,
and PermuteFormer are here; types 1 and 2, which rotate them, are in `rotation.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from musicgen.errors import ParameterError
from musicgen.position.base import LayerCode, PositionalEncoding, Site, at_least_fp32
from musicgen.random import NoiseKey
from musicgen.validation import check_bool, check_choice


class LRPE(PositionalEncoding):
    """Base class of LRPE's three types (Qin et al. 2023).

    At the site `query_key`, the positive features of FAVOR+ estimate exp(qᵀ W_(t − s) k), and
    outputs are averages of the values. With elu or relu, products then depend on both positions.

    At the site `feature`, as in the papers, products φ(q)ᵀ W_(t − s) φ(k) depend on t − s exactly.
    Where Λ or P makes features negative, however, weights have either sign and outputs have no
    bound. Outputs are largest where queries meet few keys: tens of times the values with relu,
    whose features are sparse, and orders of magnitude more with FAVOR+ as logits grow.

    Args:
        basis: P, one of `bases`.
        learned_basis: learn the vectors v of the Householder basis.
        shared: use one code for all layers; else one code per layer with its own parameters.
        site: `query_key` or `feature`; None: `feature` with elu and relu, else `query_key`.
        normaliser: how linear attention is normalised, at the site `feature` only. `unencoded`:
            by the features before encoding, which are positive, as in RoFormer (Su et al. 2021,
            §3.3, eq. 19). `encoded`: by the features after encoding, as in LRPE (Qin et al. 2023,
            eq. 38). Weights then add up to 1, but where features are negative the sum may vanish
            or be negative: its sign is kept, and 1e-6 is added to its magnitude. None: `encoded`
            where features stay positive, else `unencoded`.

    Raises:
        ParameterError: `basis` is not one of `bases`, or `normaliser` is unknown.
    """

    sites = frozenset({Site.QUERY_KEY, Site.FEATURE})
    relative: Literal["no", "exact", "expected"] = "exact"
    bases: ClassVar[tuple[str, ...]] = ("householder", "identity", "odd_even")
    keeps_sign: bool = False  # of a class: Λ keeps positive vectors positive; of an object: ΛP does

    def __init__(
        self,
        *args: int,
        basis: str = "householder",
        learned_basis: bool = False,
        shared: bool = True,
        site: str | None = None,
        normaliser: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
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
        """Return Λ^(s) as a function of Px: [B, L, H, M] -> [B, L, H, E].

        Args:
            positions: s, [1|B, L, num_dims].
            code: number of the code.
        """

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

    def kernel(self, lags: Tensor, layer: int = 0) -> Tensor:
        """Return the diagonal of W_τ at each lag τ: [N] or [N, num_dims] -> [H, M, N].

        It is the product of each feature with itself, and corresponds to P_d of SPE.
        """
        steps = lags.reshape(-1, self.num_dims)
        code = self._codes(F.pad(steps, (0, 0, 1, 0))[None])[layer]
        dtype = torch.promote_types(lags.dtype, torch.float32)
        units = torch.eye(self.width, dtype=dtype, device=lags.device)[:, None, None]
        units = units.expand(-1, 1 + len(steps), self.num_heads, -1)
        encoded = code.apply(units)  # [M, 1 + N, H, E]
        return (encoded[:, :1] * encoded[:, 1:]).sum(-1).permute(2, 0, 1)


@dataclass(eq=False)
class LRPECode(LayerCode):
    """Multiplication of queries and keys by Λ^(s) P, for one code."""

    basis: Callable[[Tensor, int], Tensor]
    index: int
    transform: Callable[[Tensor], Tensor]

    def apply(self, x: Tensor) -> Tensor:
        """Return encoded vectors in fp32 or fp64: [B, L, H, M] -> [B, L, H, E]."""
        with torch.autocast(x.device.type, enabled=False):
            (x,) = at_least_fp32(x)
            return self.transform(self.basis(x, self.index)).to(x.dtype)

    def encode(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.apply(q), self.apply(k)


def identity(x: Tensor, code: int) -> Tensor:
    """Return x unchanged: P = I, the basis of RoPE and PermuteFormer."""
    return x


def odd_even(x: Tensor, code: int) -> Tensor:
    """Return x permuted: the first half to even places, the second to odd ones (eq. 74)."""
    j = torch.arange(x.shape[-1], device=x.device)
    return x[..., j // 2 + j % 2 * ((len(j) + 1) // 2)]


def fourier(x: Tensor, code: int) -> Tensor:
    """Return the unitary discrete Fourier transform of x, which is complex."""
    return torch.fft.fft(x, norm="ortho")


class Householder(nn.Module):
    """The basis P = I − 2vvᵀ / vᵀv, v ~ N(0, I) per code and head (Qin et al. 2023, eq. 73).

    Args:
        num_codes, num_heads, width: shape of v.
        learned: v is a parameter; else it stays as it was drawn.
    """

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
    """The reflection x − 2v (v·x) of x [B, L, H, M] at unit vectors v [H, M].

    Its matrix is symmetric, so that the backward pass is the same reflection.
    """

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
    """Return v·x per head: [B, L, H, 1]."""
    return torch.einsum("blhm,hm->blh", x, v)[..., None]


class PermutationLRPE(LRPE):
    """LRPE of type 3: Λ^(s) permutes x_j -> x_{π^s(j)}, with a random π per head (eq. 24).

    Raises:
        ParameterError: there is more than one coordinate.
    """

    name = "lrpe_permutation"
    keeps_sign = True
    cycles: Tensor  # [4, codes, H, M]

    def __init__(self, *args: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.num_dims > 1:
            expected = (
                "expected index or time or another name alone, as a permutation has one power; "
                "rope takes several"
            )
            raise ParameterError("coordinates", kwargs["coordinates"], expected)
        count = self.num_codes * self.num_heads
        drawn = [find_cycles(torch.randperm(self.width)) for _ in range(count)]
        cycles = torch.stack(drawn, dim=1).unflatten(1, (self.num_codes, self.num_heads))
        self.register_buffer("cycles", cycles)

    def transform(self, positions: Tensor, code: int) -> Callable[[Tensor], Tensor]:
        order, start, length, offset = self.cycles[:, code]  # [H, M] each
        exponents = positions[:, :, None].long()  # [1|B, L, 1, 1], may be negative
        place = start + (offset + exponents) % length
        index = order.expand_as(place).gather(-1, place)  # π^s(j): [1|B, L, H, M]
        return lambda x: x.gather(-1, index.expand(x.shape[0], -1, -1, -1))


class PermuteFormer(PermutationLRPE):
    """PermuteFormer (Chen 2021): LRPE's type 3 with P = I, and a decay in causal attention.

    The paper encodes queries by (r P_π)^s and keys by (r⁻¹ P_π)^s, which weights the pair (n, m)
    of tokens by r^(n − m). Here the causal product applies r^(n − m), where it cannot overflow.
    Head h has r = sigmoid(2 + 3h/H), as in the paper's language models. n − m is always a number of
    tokens. Causal softmax attention has no decay, so that `decay` must be False there.

    Args:
        decay: False sets r = 1. Bidirectional attention never decays.
    """

    name = "permute"
    decays = True

    def __init__(self, *args: int, decay: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, basis="identity", **kwargs)
        check_bool("decay", decay)
        self.decay = decay

    def log_decay(self) -> Tensor | None:
        if not self.decay:
            return None
        heads = torch.arange(self.num_heads, device=self.cycles.device)
        return F.logsigmoid(2 + 3 * heads / self.num_heads)


def find_cycles(permutation: Tensor) -> Tensor:
    """Return the cycles of the permutation j -> permutation[j] of M elements.

    Returns:
        [4, M]. Row 0 has the elements, cycle by cycle, in the order of the permutation. For each
        element j, row 1 has the start of its cycle in row 0, row 2 the length of the cycle, and
        row 3 the offset of j within it.
    """
    if permutation.is_meta:
        return torch.empty(4, len(permutation), dtype=torch.long, device="meta")
    image = permutation.tolist()
    order: list[int] = []
    places: dict[int, tuple[int, int, int]] = {}  # of each element: start, length, offset
    for first in range(len(image)):
        if first not in places:
            cycle = [first]
            while (element := image[cycle[-1]]) != first:
                cycle.append(element)
            places |= {element: (len(order), len(cycle), i) for i, element in enumerate(cycle)}
            order += cycle
    starts, lengths, offsets = zip(*(places[j] for j in range(len(image))), strict=True)
    return torch.tensor([order, starts, lengths, offsets])
