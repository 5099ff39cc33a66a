"""Rotations of features by angles proportional to the position: LRPE of types 1 and 2, RoPE."""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from musicgen.errors import ParameterError, UserError
from musicgen.position.angles import angles_at, geometric_frequencies, to_fp64
from musicgen.position.lrpe import LRPE
from musicgen.validation import check_bool, check_choice, check_int


class Rotation(LRPE):
    """Base class of types 1 and 2 of LRPE, where Λ^(s) rotates complex numbers by angles s·α_t.

    In n dimensions, angle t uses coordinate t mod n as s, and each coordinate gets the full range
    of frequencies of one dimension.

    Args:
        learned_angles: learn log α per head; else α keeps its initial value. The logarithm
            lets an optimizer change slow and fast angles in proportion.
        angles: initial values of α_t, t < A, which are the theta types a, b and c of Qin et al.
            2023 (appendix D.2). `geometric`: 10000^(−2t/M) for M rotated features. `linear`:
            (π/2)(t + 1)/(AN). `harmonic`: (π/2)/((t + 1)N). The paper's listing uses the length of
            each sequence for N.
        training_length: N, in the unit of the coordinates.
        mixed: rotate only as many features as half of the angles, rounded up, need. The other
            features stay as they are (the identity part of eq. 23).
    """

    features_per_angle: ClassVar[int] = 1  # A = M / features_per_angle, or half of that if `mixed`
    even: Tensor  # [A]: 2t
    dims: Tensor  # [A]: the coordinate that an angle uses; [M / features_per_angle] if mixed

    def __init__(
        self,
        *args: int,
        learned_angles: bool = True,
        angles: str = "geometric",
        training_length: int = 1,
        mixed: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        check_bool("learned_angles", learned_angles)
        check_choice("angles", angles, ("geometric", "linear", "harmonic"))
        check_int("training_length", training_length)
        check_bool("mixed", mixed)
        if self.width % self.features_per_angle:
            raise UserError(
                f"position={self.name} rotates features in pairs: expected heads of an even width, "
                f"not {self.width}; change num_heads or dim"
            )
        self.angles, self.training_length, dims = angles, training_length, self.num_dims
        all_angles = self.width // self.features_per_angle
        count = (all_angles + 1) // 2 if mixed else all_angles
        if dims > count:
            expected = f"expected at most {count}, in heads of width {self.width}; use wider heads"
            raise ParameterError("coordinates", f"{dims} coordinates", expected)
        # Without arithmetic of tensors, which on the meta device imports torch's compiler.
        even, own = [2 * (t // dims * dims) for t in range(count)], range(all_angles)
        self.register_buffer("even", torch.tensor(even), persistent=False)
        self.register_buffer("dims", torch.tensor([t % dims for t in own]), persistent=False)
        self.log_alpha: nn.Parameter | None = None  # [codes, H, A]
        if learned_angles:
            start = (2 * math.pi * self._start()).log().float()
            self.log_alpha = nn.Parameter(start.repeat(self.num_codes, self.num_heads, 1))

    def frequency(self, code: int) -> Tensor:
        """Return the frequencies in turns per position, in fp64: [1|H, M / features_per_angle].

        With `mixed`, the last ones are 0. The first size is 1 if all heads share them.
        """
        if self.log_alpha is None:
            turns = self._start()[None]
        else:
            turns = to_fp64(self.log_alpha[code]).exp() / (2 * math.pi)
        return F.pad(turns, (0, len(self.dims) - len(self.even)))

    def _start(self) -> Tensor:
        """Return the initial frequencies in turns per position, in fp64: [A]."""
        count, first = len(self.even), to_fp64(self.even) / 2
        match self.angles:
            case "linear":
                return (first + self.num_dims) / (4 * count * self.training_length)
            case "harmonic":
                return 1 / (4 * (first / self.num_dims + 1) * self.training_length)
        return geometric_frequencies(self.even, count * self.features_per_angle)

    def cos_sin(self, positions: Tensor, code: int) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of s·α_t: [1|B, L, num_dims] -> [1|B, L, 1|H, A] each.

        With `mixed`, there are M / features_per_angle of them.
        """
        parameter_dtype = torch.float32 if self.log_alpha is None else self.log_alpha.dtype
        dtype = torch.promote_types(parameter_dtype, torch.float32)
        angle = angles_at([(positions[:, :, None, self.dims], self.frequency(code))], dtype)
        return angle.cos(), angle.sin()


class UnitaryLRPE(Rotation):
    """LRPE of type 1: Λ^(s) = diag exp(i s α_t), t < M (eq. 22).

    Attention uses the real part of products. Encoded vectors have E = 2M numbers, the real parts
    and then the imaginary parts.
    """

    name = "lrpe_unitary"
    bases = (*LRPE.bases, "fourier")

    def __init__(self, *args: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.encoded_dim = 2 * self.width

    def transform(self, positions: Tensor, code: int) -> Callable[[Tensor], Tensor]:
        cos_sin = self.cos_sin(positions, code)
        stacked = torch.stack(cos_sin, dim=-2)  # [1|B, L, 1|H, 2, M]

        def rotate(x: Tensor) -> Tensor:
            if not x.is_complex():
                return (x[..., None, :] * stacked).flatten(-2)
            rotated = x * torch.complex(*cos_sin)
            return torch.cat((rotated.real, rotated.imag), dim=-1)

        return rotate


class OrthogonalLRPE(Rotation):
    """LRPE of type 2: Λ^(s) rotates adjacent pairs of features by s·α_t (eq. 23).

    Raises:
        UserError: `width` is odd.
    """

    name = "lrpe_orthogonal"
    features_per_angle = 2

    def transform(self, positions: Tensor, code: int) -> Callable[[Tensor], Tensor]:
        phases = torch.complex(*self.cos_sin(positions, code))

        def rotate(x: Tensor) -> Tensor:
            pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
            return torch.view_as_real(pairs * phases).flatten(-2)

        return rotate


class RoPE(OrthogonalLRPE):
    """RoPE (Su et al. 2021, §3.2.2, eq. 15): LRPE of type 2 with P = I and fixed angles."""

    name = "rope"

    def __init__(self, *args: int, **kwargs: Any) -> None:
        super().__init__(*args, basis="identity", learned_angles=False, **kwargs)
