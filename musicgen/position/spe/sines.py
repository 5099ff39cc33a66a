"""The sines of SineSPE: Ω at positions, and codes, which are Ω times noise."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from musicgen.position.angles import angles_at
from musicgen.position.base import product_dtype


class Sines(NamedTuple):
    """The parameters of one code."""

    frequency: Tensor  # [P, H, K, K'] in turns per position, within ±½; in fp64 (see `angles_at`)
    phase: Tensor  # [H, K, K']: θ, of queries only
    gain: Tensor  # [H, K, K']: λ
    class_omega: Tensor | None  # [H, 2K', K]: Ω of tokens without a position; None: not allowed

    def omega(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return Ω of queries and of keys: [1|B, L, P] -> [1|B, H, L, 2K', K] each."""
        f, theta, gain = (p.transpose(-2, -1)[..., None, :, :] for p in self[:3])  # [.., 1, K', K]
        n = positions.movedim(-1, 0)[:, :, None, :, None, None]  # [P, 1|B, 1, L, 1, 1]
        with torch.autocast(positions.device.type, enabled=False):
            angle = angles_at(zip(n, f, strict=True))
            cos, sin = angle.cos(), angle.sin()
            k = torch.cat((gain * cos, gain * sin), dim=-2)
            # A rotation by θ is faster than the sines of a second angle.
            a, b = gain * theta.cos(), gain * theta.sin()
            q = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-2)
        if self.class_omega is None:
            return q, k
        positioned = (positions >= 0).all(-1)[:, None, :, None, None]
        other = self.class_omega[:, None]
        return torch.where(positioned, q, other), torch.where(positioned, k, other)

    def mean_square(self, positions: Tensor) -> Tensor:
        """Return ‖Ω‖² / 2K': [H, K]; with class tokens, where it differs, [1|B, L, H, K]."""
        width = 2 * self.gain.shape[-1]
        mean_square = self.gain.square().sum(-1) / width
        if self.class_omega is None:
            return mean_square
        positioned = (positions >= 0).all(-1)[..., None, None]  # [1|B, L, 1, 1]
        return torch.where(positioned, mean_square, self.class_omega.square().sum(-2) / width)

    def codes(self, positions: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return the codes q̄ and k̄, [L, H, K, R] each, in the dtype of products.

        Args:
            positions: [1, L, P].
            z: noise [H, 2K', K, R].
        """
        dtype = product_dtype(positions.device)
        noise = z.transpose(1, 2).flatten(0, 1).to(dtype)  # [H·K, 2K', R]
        formed = []
        for omega in self.omega(positions):
            waves = omega[0].permute(0, 3, 1, 2).flatten(0, 1).to(dtype)  # [H·K, L, 2K']
            with torch.autocast(positions.device.type, enabled=False):
                code = torch.bmm(waves, noise)  # [H·K, L, R]
            formed.append(code.transpose(0, 1).unflatten(1, z.shape[0:3:2]).contiguous())
        return formed[0], formed[1]
