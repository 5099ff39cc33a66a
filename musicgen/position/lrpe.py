"""Linearised relative positional encoding (Qin et al. 2023): W_s = Pᴴ Λ^(s) P, unitary.

(W_s q)ᴴ (W_t k) = qᴴ W_(t − s) k, so that each vector is encoded on its own, by its own position,
and products depend on t − s alone. The leading Pᴴ cancels, and is left out.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from musicgen.errors import UserError
from musicgen.position.base import LayerCode, NoiseKey, PositionalEncoding, Site
from musicgen.position.bases import Basis, Fourier, Householder, Identity, OddEven
from musicgen.position.cycles import Cycles, power


class LRPE(PositionalEncoding):
    """What the three types share: where they act, P, and one or many codes.

    Under linear attention it acts on the feature maps. Λ and P may turn positive features
    negative, and with them the normaliser. So numerators are of encoded features, and the
    normaliser of those before encoding, as in RoFormer's linear form (Su et al. 2021, §3.3).
    Permutations keep the sign, and are in both.

    Args:
        basis: P, one of `bases`.
        learned_basis: learn Householder's v.
        shared: one code for all layers; else a code and parameters for each.

    Attributes:
        bases: the words for P that this type takes.
        keeps_sign: of the type alone, whatever P does.

    Raises:
        UserError: P is none of `bases`, or has nothing to learn.
    """

    sites = frozenset({Site.QUERY_KEY, Site.FEATURE})
    relative: Literal["no", "exact", "expected"] = "exact"
    bases: ClassVar[tuple[str, ...]] = ("householder", "identity", "odd_even")
    keeps_sign: ClassVar[bool] = False

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        width: int,
        model_dim: int,
        *,
        basis: str = "householder",
        learned_basis: bool = False,
        shared: bool = True,
        coordinates: str | int = "index",
    ) -> None:
        super().__init__(num_layers, num_heads, width, model_dim, coordinates=coordinates)
        if basis not in self.bases:
            raise UserError(
                f"model.position.basis={basis}: position={self.name} takes {', '.join(self.bases)}"
            )
        if learned_basis and basis != "householder":
            raise UserError(
                f"model.position.learned_basis=true: basis={basis} has nothing to learn. "
                "Use model.position.learned_basis=false or model.position.basis=householder"
            )
        self.num_codes = 1 if shared else num_layers
        self.basis: Basis
        match basis:
            case "householder":
                sizes = self.num_codes, num_heads, width
                self.basis = Householder(*sizes, learned=learned_basis)
            case "identity":
                self.basis = Identity()
            case "odd_even":
                self.basis = OddEven()
            case "fourier":
                self.basis = Fourier()

    @abstractmethod
    def powers(self, positions: Tensor, code: int) -> Callable[[Tensor], Tensor]:
        """Λ^(s) at positions [1|B, L, num_dims]: a function of Px, [B, L, H, M] -> [B, L, H, E]."""

    @property
    def shares_kernel(self) -> bool:
        return self.num_codes == 1

    def forward(
        self, positions: Tensor, *, noise: NoiseKey | None = None, state: Any = None
    ) -> tuple[Sequence[LRPECode], Any]:
        positions = self.read(positions)
        with torch.autocast(positions.device.type, enabled=False):
            powers = [self.powers(positions, code) for code in range(self.num_codes)]
        decay = self.log_decay()
        keeps_sign = self.keeps_sign and self.basis.keeps_sign
        codes = [LRPECode(self.basis, i, p, keeps_sign, decay) for i, p in enumerate(powers)]
        return codes * (self.num_layers // self.num_codes), None

    def kernel(self, lags: Tensor, layer: int | None = None) -> Tensor:
        """The diagonal of W_τ: how a feature goes with itself at the lags τ: -> [H, M, N].

        As SPE's P_d. Lags are [N], or [N, num_dims] where several coordinates are read.
        Without `layer`: of the first code.
        """
        steps = lags.reshape(-1, self.num_dims)
        steps = torch.cat((torch.zeros_like(steps[:1]), steps))
        positions = F.pad(steps, (self.columns.start, 0))[None]  # [1, N + 1, columns.stop]
        codes, _ = self(positions)
        code = codes[layer or 0]
        dtype = torch.promote_types(lags.dtype, torch.float32)
        units = torch.eye(self.width, dtype=dtype, device=lags.device)[:, None, None]
        units = units.expand(-1, positions.shape[1], self.num_heads, -1)
        encoded = code.apply(units)  # [M, N + 1, H, E]
        return (encoded[:, :1] * encoded[:, 1:]).sum(-1).permute(2, 0, 1)


class LRPECode(LayerCode):
    """Λ^(s) P of one code."""

    def __init__(
        self,
        basis: Basis,
        index: int,
        powers: Callable[[Tensor], Tensor],
        keeps_sign: bool,
        log_decay: Tensor | None,
    ) -> None:
        self.basis, self.index, self.powers = basis, index, powers
        self.keeps_sign, self.log_decay = keeps_sign, log_decay

    def apply(self, x: Tensor) -> Tensor:
        """[B, L, H, M] -> [B, L, H, E], in fp32 or fp64."""
        with torch.autocast(x.device.type, enabled=False):
            x = x if x.dtype == torch.float64 else x.float()
            return self.powers(self.basis(x, self.index)).to(x.dtype)

    def encode(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.apply(q), self.apply(k)


class Rotation(LRPE):
    """Types 1 and 2: Λ^(s) turns complex numbers by the angles s·α_t.

    In n dimensions the angles are dealt out to the dimensions in turn, each with the range of
    frequencies that one dimension has: s is then the coordinate of the angle's dimension.

    Args:
        learned_angles: learn log α, for each head; else α stays 10000^(−2t/M), alike in all heads.
            The logarithm, as steps of an optimizer are far larger than a slow angle, which would
            be lost in them.

    The other arguments are `LRPE`'s.
    """

    start: Tensor  # [A]
    dims: Tensor  # [A]: the dimension that an angle belongs to

    def __init__(
        self, *args: int, num_angles: int, learned_angles: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        t, dims = torch.arange(num_angles), self.num_dims
        start = 10000.0 ** (t // dims * dims * (-2 / self.width))
        self.log_alpha: nn.Parameter | None = None  # [codes, H, A]
        if learned_angles:
            self.log_alpha = nn.Parameter(start.log().repeat(self.num_codes, self.num_heads, 1))
        self.register_buffer("start", start, persistent=False)
        self.register_buffer("dims", t % dims, persistent=False)

    def alpha(self, code: int) -> Tensor:
        """The angles of one position's step: [H, A], or [1, A] where all heads have the same."""
        return self.start[None] if self.log_alpha is None else self.log_alpha[code].exp()

    def waves(self, positions: Tensor, code: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of s·α_t: [1|B, L, P] -> [1|B, L, 1|H, A] each."""
        alpha = self.alpha(code)
        alpha = alpha.to(torch.promote_types(alpha.dtype, torch.float32))
        angle = positions[..., None, self.dims].to(alpha.dtype) * alpha
        return angle.cos(), angle.sin()


class UnitaryLRPE(Rotation):
    """Type 1: Λ^(s) = diag exp(i s α_t), t < M (eq. 22), and the real part of the product.

    In real arithmetic the width doubles: real parts, then imaginary ones.
    """

    name = "lrpe_unitary"
    bases = (*LRPE.bases, "fourier")

    def __init__(
        self, num_layers: int, num_heads: int, width: int, model_dim: int, **kwargs: Any
    ) -> None:
        super().__init__(num_layers, num_heads, width, model_dim, num_angles=width, **kwargs)
        self.encoded_dim = 2 * width

    def powers(self, positions: Tensor, code: int) -> Callable[[Tensor], Tensor]:
        waves = self.waves(positions, code)
        both = torch.stack(waves, dim=-2)  # [1|B, L, 1|H, 2, M]

        def turn(x: Tensor) -> Tensor:
            if not x.is_complex():
                return (x[..., None, :] * both).flatten(-2)
            turned = x * torch.complex(*waves)
            return torch.cat((turned.real, turned.imag), dim=-1)

        return turn


class OrthogonalLRPE(Rotation):
    """Type 2: Λ^(s) rotates pairs of neighbours by s·α_t, t < M/2 (eq. 23, without identity)."""

    name = "lrpe_orthogonal"

    def __init__(
        self, num_layers: int, num_heads: int, width: int, model_dim: int, **kwargs: Any
    ) -> None:
        if width % 2:
            raise UserError(
                f"position={self.name} turns features in pairs, but there are {width}; "
                "choose model.dim and model.num_heads so that model.dim / model.num_heads is even"
            )
        super().__init__(num_layers, num_heads, width, model_dim, num_angles=width // 2, **kwargs)

    def powers(self, positions: Tensor, code: int) -> Callable[[Tensor], Tensor]:
        phases = torch.complex(*self.waves(positions, code))

        def turn(x: Tensor) -> Tensor:
            pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
            return torch.view_as_real(pairs * phases).flatten(-2)

        return turn


class PermutationLRPE(LRPE):
    """Type 3: Λ^(s) = (I)_{π^s}, x_j -> x_{π^s(j)}, with one random π for each head (eq. 24)."""

    name = "lrpe_permutation"
    keeps_sign = True
    cycles: Tensor

    def __init__(self, *args: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.num_dims > 1:
            raise UserError(
                f"model.position.coordinates={kwargs['coordinates']}: a permutation has one power. "
                "Use model.position.coordinates=index or time, or position=lrpe_orthogonal"
            )
        count = self.num_codes * self.num_heads
        drawn = [torch.stack(Cycles.of(torch.randperm(self.width))) for _ in range(count)]
        cycles = torch.stack(drawn, dim=1).unflatten(1, (self.num_codes, self.num_heads))
        self.register_buffer("cycles", cycles)  # [4, codes, H, M]

    def powers(self, positions: Tensor, code: int) -> Callable[[Tensor], Tensor]:
        index = power(self.cycles[:, code], positions[..., None].long())  # [1|B, L, H, M]
        return lambda x: x.gather(-1, index.expand(len(x), -1, -1, -1))
